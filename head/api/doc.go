// Package api serves the HTTP API of a head: routes, OpenAPI, problems, the event
// stream and paging. Handlers translate; they decide nothing. What they ask for is the
// Backend, who may ask is head/access, and the page is head/dashboard. No storage, no
// scheduling and no rule about jobs may live here, only the shape of requests.
package api
