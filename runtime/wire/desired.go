package wire

// Desired is everything one node is to run (n.<node>.desired); an allocation that
// is absent ends. The head sends it on change and repeats it until a heartbeat
// shows it taken.
type Desired struct {
	Position Position `json:"pos"`
	Allocs   []Alloc  `json:"allocs"`
	// Warm is what the node prepares beside, nil: nothing. Older agents leave it alone.
	Warm *WarmOrder `json:"warm,omitempty"`
}

// WarmOrder has a node prepare for ranks that do not run there yet: those of a job which
// holds spare bundles on it.
type WarmOrder struct {
	Job     string   `json:"job"`
	Run     string   `json:"run"`
	Tenant  string   `json:"tenant"`
	Devices []string `json:"devices,omitempty"`
	// Attempt is like those that would run: as many ranks as the bundles on the node. Nothing
	// of it is started.
	Attempt AttemptSpec `json:"attempt"`
}
