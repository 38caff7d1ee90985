// Package api holds the request, response, reason and state types of the HTTP API.
// The same structs are what the command line prints with -o json and what the SDKs
// send, so adding a field is allowed and removing one is not. Only types, their
// validation and their printing live here: no transport, no storage, no clock.
package api
