package wire

import "strconv"

// Subjects. A node may publish only on head.*.<its id> and listen only on
// n.<its id>.>; so the id in the subject is the identity and no body repeats it.
const (
	HeadRegister  = "head.register."  // + node; RegisterRequest → RegisterReply
	HeadHeartbeat = "head.heartbeat." // + node; Heartbeat → HeartbeatAck
	HeadReport    = "head.report."    // + node; Report → ReportAck
	HeadPrepared  = "head.prepared."  // + node; Prepared → Verdict
	HeadFetch     = "head.fetch."     // + node; nothing → Desired
	HeadPackage   = "head.package."   // + node; PackageRequest → PackagePiece
	HeadRenew     = "head.renew."     // + node; RenewRequest → RenewReply
	HeadNotice    = "head.notice."    // + node; Notice → NoticeAck
)

// NodeDesired is where a node hears its desired state.
func NodeDesired(node string) string { return "n." + node + ".desired" }

// NodeVerdict is where a node hears the fate of prepared steps.
func NodeVerdict(node string) string { return "n." + node + ".verdict" }

// NodeTask is where a node takes checkpoint tasks.
func NodeTask(node string) string { return "n." + node + ".task" }

// NodeLog is where a node answers for its log files.
func NodeLog(node string) string { return "n." + node + ".log" }

// NodeFault is where a node takes faults to inject.
func NodeFault(node string) string { return "n." + node + ".fault" }

// NodeStartCheck is where a node is asked whether a job could start there.
func NodeStartCheck(node string) string { return "n." + node + ".start-check" }

// NodeSignal is where a node takes signals for ranks.
func NodeSignal(node string) string { return "n." + node + ".signal" }

// ActorCall is where one generation of an actor listens; a call to an older
// generation finds nobody or is refused (P3).
func ActorCall(actor string, generation uint64) string {
	return "a." + actor + "." + strconv.FormatUint(generation, 10) + ".call"
}

// AnyActorCall matches the calls of every actor and generation.
const AnyActorCall = "a.*.*.call"

// InboxPrefix is the reply prefix that belongs to one identity alone.
func InboxPrefix(identity string) string { return "_INBOX." + identity }
