package access

// Role is what an identity may do; a greater role may do all that a lesser one may.
type Role int

// Roles in order. An identity without a role may do nothing at all.
const (
	None Role = iota
	Viewer
	Submitter
	TenantAdmin
	Operator
	Admin
)

var roleNames = map[Role]string{
	Viewer: "viewer", Submitter: "submitter", TenantAdmin: "tenant-admin", Operator: "operator", Admin: "admin",
}

// String is the role's name in tokens, logs and messages; "none" for None.
func (r Role) String() string {
	if s, ok := roleNames[r]; ok {
		return s
	}
	return "none"
}

// ParseRole reads a role's name; whatever is no name is None, so that a role which a
// newer version wrote grants nothing here.
func ParseRole(name string) Role {
	for r, s := range roleNames {
		if s == name {
			return r
		}
	}
	return None
}
