package access

import "net/http"

// Kind says how a route speaks: which bodies it reads and how it answers an error.
type Kind int

// Kinds of route.
const (
	API    Kind = iota // JSON in, JSON or bytes out, problems as JSON
	Page               // HTML for people; forms in, problems as a page
	Static             // files that never change while the process runs
	Upload             // bytes in, streamed to the handler; JSON out
)

// Route is one row of the table: who may use a method on a pattern.
type Route struct {
	Method  string
	Pattern string // as net/http.ServeMux reads it
	// Need is the least role. A route is open to everybody only if Anonymous says so:
	// a forgotten Need refuses.
	Need      Role
	Anonymous bool
	// Loopback opens the route to everybody on the head's own machine as well.
	Loopback bool
	Kind     Kind
}

// Table is every route of the head. A handler without a row is refused by
// Guard.Handle, and a row without a handler by Guard.Check, so this is the whole
// surface and a change of it is one visible line.
func Table() []Route {
	const get, post, put, del, patch = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch
	return []Route{
		{Method: get, Pattern: "/livez", Anonymous: true},
		{Method: get, Pattern: "/readyz", Anonymous: true},
		{Method: get, Pattern: "/version", Anonymous: true},
		{Method: get, Pattern: "/metrics", Need: Viewer, Loopback: true},
		{Method: get, Pattern: "/api/openapi.json", Need: Viewer},

		{Method: get, Pattern: "/api/v1/status", Need: Viewer},
		{Method: get, Pattern: "/api/v1/jobs", Need: Viewer},
		{Method: post, Pattern: "/api/v1/jobs", Need: Admin},
		{Method: get, Pattern: "/api/v1/jobs/{id}", Need: Viewer},
		{Method: post, Pattern: "/api/v1/jobs/{id}/stop", Need: Admin},
		{Method: post, Pattern: "/api/v1/jobs/{id}/scale", Need: Admin},
		{Method: post, Pattern: "/api/v1/jobs/{id}/disown", Need: Admin},
		{Method: post, Pattern: "/api/v1/jobs/{id}/signal", Need: Admin},
		{Method: get, Pattern: "/api/v1/jobs/{id}/why", Need: Viewer},
		{Method: get, Pattern: "/api/v1/jobs/{id}/goodput", Need: Viewer},
		{Method: get, Pattern: "/api/v1/jobs/{id}/history", Need: Viewer},
		{Method: get, Pattern: "/api/v1/jobs/{id}/failures", Need: Viewer},
		{Method: post, Pattern: "/api/v1/jobs/{id}/stacks", Need: Admin},
		{Method: get, Pattern: "/api/v1/jobs/{id}/ranks/{rank}/log", Need: Viewer},
		{Method: get, Pattern: "/api/v1/packages/{hash}", Need: Submitter},
		{Method: put, Pattern: "/api/v1/packages/{hash}", Need: Submitter, Kind: Upload},
		{Method: get, Pattern: "/api/v1/placement-groups", Need: Viewer},
		{Method: post, Pattern: "/api/v1/placement-groups", Need: Admin},
		{Method: get, Pattern: "/api/v1/placement-groups/{id}", Need: Viewer},
		{Method: del, Pattern: "/api/v1/placement-groups/{id}", Need: Admin},
		{Method: get, Pattern: "/api/v1/nodes", Need: Viewer},
		{Method: get, Pattern: "/api/v1/nodes/{id}", Need: Viewer},
		{Method: post, Pattern: "/api/v1/nodes/{id}/drain", Need: Admin},
		{Method: post, Pattern: "/api/v1/nodes/{id}/cordon", Need: Admin},
		{Method: post, Pattern: "/api/v1/nodes/{id}/uncordon", Need: Admin},
		{Method: get, Pattern: "/api/v1/queues", Need: Viewer},
		{Method: put, Pattern: "/api/v1/queues", Need: Admin},
		{Method: get, Pattern: "/api/v1/queues/{name}", Need: Viewer},
		{Method: del, Pattern: "/api/v1/queues/{name}", Need: Admin},
		{Method: post, Pattern: "/api/v1/queues/{name}/pause", Need: Admin},
		{Method: post, Pattern: "/api/v1/queues/{name}/resume", Need: Admin},
		{Method: get, Pattern: "/api/v1/queues/{name}/order", Need: Viewer},
		{Method: get, Pattern: "/api/v1/usage", Need: Viewer},
		{Method: post, Pattern: "/api/v1/outlook", Need: Admin},
		{Method: get, Pattern: "/api/v1/declared", Need: Viewer},
		{Method: put, Pattern: "/api/v1/reservations/{name}", Need: Admin},
		{Method: del, Pattern: "/api/v1/reservations/{name}", Need: Admin},
		{Method: put, Pattern: "/api/v1/capacities/{name}", Need: Admin},
		{Method: del, Pattern: "/api/v1/capacities/{name}", Need: Admin},
		{Method: put, Pattern: "/api/v1/topology", Need: Admin},
		{Method: put, Pattern: "/api/v1/links", Need: Admin},
		{Method: post, Pattern: "/api/v1/jobs/{id}/hold", Need: Admin},
		{Method: post, Pattern: "/api/v1/jobs/{id}/release", Need: Admin},
		{Method: post, Pattern: "/api/v1/jobs/{id}/suspend", Need: Admin},
		{Method: post, Pattern: "/api/v1/jobs/{id}/resume", Need: Admin},
		{Method: post, Pattern: "/api/v1/jobs/{id}/requeue", Need: Admin},
		{Method: patch, Pattern: "/api/v1/jobs/{id}", Need: Admin},
		{Method: get, Pattern: "/api/v1/actors", Need: Viewer},
		{Method: get, Pattern: "/api/v1/actors/{id}", Need: Viewer},
		{Method: post, Pattern: "/api/v1/jobs/{id}/faults", Need: Admin},
		{Method: post, Pattern: "/api/v1/actors/{id}/kill", Need: Admin},
		{Method: get, Pattern: "/api/v1/checkpoints", Need: Viewer},
		{Method: post, Pattern: "/api/v1/checkpoints/{run}/{step}/verify", Need: Admin},
		{Method: get, Pattern: "/api/v1/checkpoints/{run}/{step}", Need: Viewer},
		{Method: del, Pattern: "/api/v1/checkpoints/{run}/{step}", Need: Admin},
		{Method: post, Pattern: "/api/v1/checkpoints/{run}/{step}/pin", Need: Admin},
		{Method: post, Pattern: "/api/v1/checkpoints/{run}/{step}/unpin", Need: Admin},
		{Method: post, Pattern: "/api/v1/checkpoints/{run}/{step}/export", Need: Admin},
		{Method: post, Pattern: "/api/v1/checkpoints/{run}/adopt", Need: Admin},
		{Method: post, Pattern: "/api/v1/checkpoints/{run}/gc", Need: Admin},
		{Method: get, Pattern: "/api/v1/checkpoints/{run}/lineage", Need: Viewer},
		{Method: get, Pattern: "/api/v1/events", Need: Viewer},
		{Method: get, Pattern: "/api/v1/events/stream", Need: Viewer},
		{Method: get, Pattern: "/api/v1/why/{kind}/{id...}", Need: Viewer},
		{Method: post, Pattern: "/api/v1/bus-access", Need: Admin},
		{Method: post, Pattern: "/api/v1/ui/sign-in-codes", Need: Admin},

		{Method: get, Pattern: "/{$}", Anonymous: true, Kind: Page},
		{Method: get, Pattern: "/ui", Anonymous: true, Kind: Page},
		{Method: get, Pattern: "/ui/sign-in", Anonymous: true, Kind: Page},
		{Method: post, Pattern: "/ui/sign-out", Need: Viewer, Kind: Page},
		{Method: get, Pattern: "/ui/static/{file}", Anonymous: true, Kind: Static},
		{Method: get, Pattern: "/ui/{$}", Need: Viewer, Kind: Page},
		{Method: get, Pattern: "/ui/nodes", Need: Viewer, Kind: Page},
		{Method: get, Pattern: "/ui/placement-groups", Need: Viewer, Kind: Page},
		{Method: get, Pattern: "/ui/queue", Need: Viewer, Kind: Page},
		{Method: get, Pattern: "/ui/jobs", Need: Viewer, Kind: Page},
		{Method: get, Pattern: "/ui/jobs/{id}", Need: Viewer, Kind: Page},
		{Method: get, Pattern: "/ui/actors", Need: Viewer, Kind: Page},
		{Method: get, Pattern: "/ui/events", Need: Viewer, Kind: Page},
	}
}
