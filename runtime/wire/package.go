package wire

// MaxPiece is the longest piece of a package in one message, in bytes: short enough for a
// heartbeat behind it not to wait.
const MaxPiece = 512 << 10

// PackageRequest asks for the bytes of a package from an offset on (head.package.<node>).
// A node gets the packages of jobs that are placed on it, and no others.
type PackageRequest struct {
	Hash   string `json:"hash"`
	Offset int64  `json:"offset"`
}

// PackagePiece answers it; Data is empty at the end of the package alone.
type PackagePiece struct {
	Size  int64  `json:"size"` // of the whole
	Data  []byte `json:"data"`
	Error string `json:"error,omitempty"` // refused, with the reason
}

// Fetch is how far a package has come, in bytes; Size is 0 until it is known.
type Fetch struct {
	Done int64 `json:"done"`
	Size int64 `json:"size"`
}
