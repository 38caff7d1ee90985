package wire

// StartCheck asks a node whether a job's folder and program are there
// (n.<node>.start-check, request and reply).
type StartCheck struct {
	Job        string   `json:"job"`
	WorkingDir string   `json:"workingDir"`
	Package    string   `json:"package,omitempty"` // see api.JobSpec
	Command    []string `json:"command"`
	Path       string   `json:"path,omitempty"` // PATH of the job's own environment
	LaunchEnv  string   `json:"launchEnv,omitempty"`
}

// StartCheckReply says what is wrong, with the code of AllocEvent; empty when nothing is.
type StartCheckReply struct {
	Error string `json:"error,omitempty"`
	Code  int64  `json:"code,omitempty"`
	// Fetch: the package is still on its way; ask again.
	Fetch *Fetch `json:"fetch,omitempty"`
}
