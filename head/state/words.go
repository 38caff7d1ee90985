package state

import "github.com/troupe-runtime/troupe/runtime/api"

// DrainReason is why what runs on a node is to leave it.
func (n *Node) DrainReason() string {
	name := n.Info.Name
	if name == "" {
		name = n.ID
	}
	switch c := n.Cordoned(); {
	case c == nil || c.Reason == "":
		return "node " + name + " is drained"
	case n.Notice != nil:
		return c.Reason // which names the node
	default:
		return "node " + name + " is drained: " + c.Reason
	}
}

// WhyNot is why a node takes nothing new.
func (n *Node) WhyNot() string {
	switch c := n.Cordoned(); {
	case n.State != api.NodeReady || c == nil:
		return n.Why
	case c.Drain:
		return n.DrainReason()
	case c.Reason == "":
		return "cordoned"
	default:
		return "cordoned: " + c.Reason
	}
}
