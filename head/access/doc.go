// Package access decides who may ask the head for what: the one table of routes and
// roles, bearer tokens, sign-in codes and sessions, the hosts that requests may name,
// and the bounds on what a request may weigh. Every request passes the Guard; nothing
// can be served without a row in the table (P10). What a route does when it is allowed
// lives in head/api and head/dashboard; where tokens are kept lives behind the
// function that the Guard is given.
package access
