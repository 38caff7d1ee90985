package control

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	headapi "github.com/troupe-runtime/troupe/head/api"
	"github.com/troupe-runtime/troupe/head/declare"
	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// keyAge is how long an idempotency key is good for.
const keyAge = 24 * time.Hour

func problem(status int, code string, exit int, title, format string, args ...any) *api.Problem {
	return &api.Problem{Status: status, Code: code, Exit: exit, Title: title, Detail: fmt.Sprintf(format, args...)}
}

func invalid(errs []api.FieldError) *api.Problem {
	p := problem(422, "TRP-A422", api.ExitBadInput, "the request is not valid", "")
	p.Errors = errs
	parts := make([]string, 0, len(errs))
	for _, e := range errs {
		parts = append(parts, strings.TrimPrefix(e.Pointer, "/")+": "+e.Detail)
	}
	p.Detail = strings.Join(parts, "; ")
	return p
}

func notFound(kind, id string) *api.Problem {
	p := problem(404, "TRP-A404", api.ExitNotFound, "not found", "no %s %q", kind, id)
	p.Help = "troupe " + kind + " list"
	return p
}

// problemOf turns what the log or the state machine said into a problem.
func (h *Head) problemOf(err error) error {
	var ref *state.Refused
	var p *api.Problem
	switch {
	case err == nil:
		return nil
	case errors.As(err, &p):
		return p
	case errors.As(err, &ref):
		switch ref.Code {
		case "not-found":
			return problem(404, "TRP-A404", api.ExitNotFound, "not found", "%s", ref.Text)
		case "ambiguous":
			return problem(400, "TRP-A400", api.ExitUsage, "ambiguous id", "%s", ref.Text)
		case "invalid":
			return problem(422, "TRP-A422", api.ExitBadInput, "the request is not valid", "%s", ref.Text)
		case "key-reused":
			return problem(422, "TRP-A423", api.ExitConflict, "idempotency key reused", "%s", ref.Text)
		}
		return problem(409, "TRP-A409", api.ExitConflict, "conflict", "%s", ref.Text)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return problem(504, "TRP-A504", api.ExitTimeout, "timed out", "%v", err)
	}
	switch {
	case errors.Is(err, ErrTooLarge):
		return problem(413, "TRP-A413", api.ExitBadInput, "too large", "the request does not fit into one log entry: %v", err)
	case errors.Is(err, ErrOutcomeUnknown):
		// Only a repeat under the same key is safe, so nothing is called retryable here.
		return problem(503, "TRP-H504", api.ExitUnreachable, "outcome unknown", "%v", err)
	}
	q := problem(503, "TRP-H503", api.ExitUnreachable, "the head cannot write now", "%v", err)
	q.Retryable = true
	return q
}

func (h *Head) leader() error {
	if h.Log.IsLeader() {
		return nil
	}
	p := problem(503, "TRP-H502", api.ExitUnreachable, "this head does not lead", "%s follows; ask the leader", h.Name)
	p.Retryable = true
	return p
}

// replay answers a repeated request from its key; ok false: it is a new one.
func (h *Head) replay(v *state.View, key headapi.Idempotency) (headapi.Made, bool, error) {
	if key.Key == "" {
		return headapi.Made{}, false, nil
	}
	if k := v.Key(key.Key); k != nil {
		if k.Fingerprint != key.Fingerprint {
			return headapi.Made{}, false, problem(422, "TRP-A423", api.ExitConflict, "idempotency key reused", "the key was used for another request")
		}
		return headapi.Made{ID: k.Result, Previously: time.Unix(0, k.At), Index: v.Index()}, true, nil
	}
	if !key.FirstSent.IsZero() && h.Clock.Now().Sub(key.FirstSent) > keyAge {
		return headapi.Made{}, false, problem(409, "TRP-A410", api.ExitUnreachable, "outcome unknown",
			"the request was first sent %s ago, before the oldest kept key; look for its result before sending it as a new one", h.Clock.Now().Sub(key.FirstSent).Round(time.Second))
	}
	return headapi.Made{}, false, nil
}

const idAlphabet = "abcdefghijkmnpqrstuvwxyz23456789"

// newID draws name-xxxx; the state machine refuses a duplicate.
func (h *Head) newID(name string) (string, error) {
	var b [5]byte
	if err := h.Random(b[:]); err != nil {
		return "", fmt.Errorf("draw an id: %w", err)
	}
	out := make([]byte, len(b))
	for i, x := range b {
		out[i] = idAlphabet[int(x)%len(idAlphabet)]
	}
	return strings.ToLower(name) + "-" + string(out), nil
}

// reader adapts Random for the ULID.
type reader func([]byte) error

func (r reader) Read(b []byte) (int, error) {
	if err := r(b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Submit queues a job, with its placement in the same log entry when it fits now.
func (h *Head) Submit(ctx context.Context, spec api.JobSpec, key headapi.Idempotency) (headapi.Made, error) {
	if err := h.leader(); err != nil {
		return headapi.Made{}, err
	}
	v := h.Store.View()
	if made, ok, err := h.replay(v, key); ok || err != nil {
		return made, err
	}
	spec, errs := canonical(spec)
	if errs = append(errs, h.pastDeadline(spec.Deadline)...); len(errs) > 0 {
		return headapi.Made{}, invalid(errs)
	}
	spec.Pool = poolOf(v, askingOf(spec))
	if p := admit(v, askingOf(spec)); p != nil {
		return headapi.Made{}, p
	}
	if err := fromStep(v, spec); err != nil {
		return headapi.Made{}, err
	}
	release, err := h.pinPackage(ctx, spec.Package)
	if err != nil {
		return headapi.Made{}, err
	}
	unsure := false
	defer func() {
		if !unsure {
			release()
		}
	}()
	id, err := h.newID(spec.Name)
	if err != nil {
		return headapi.Made{}, err
	}
	u, err := ulid.New(ulid.Timestamp(h.Clock.Now()), reader(h.Random))
	if err != nil {
		return headapi.Made{}, fmt.Errorf("draw a ULID: %w", err)
	}
	if spec.Kind == api.KindActor && h.SignNode != nil {
		return headapi.Made{}, noActors()
	}
	cmd := state.SubmitJob{ID: id, ULID: u.String(), Spec: spec, Key: key.Key, Fingerprint: key.Fingerprint, User: h.who(ctx)}
	submit := func() (any, error) { return h.propose(ctx, state.KindSubmitJob, cmd) }
	if spec.Hosts != nil {
		gs := api.GroupSpec{Name: spec.Name, Strategy: spec.Strategy, Pool: spec.Pool, Tenant: spec.Tenant, Queue: spec.Queue, Priority: spec.Priority}
		cmd.Group, cmd.GroupSpec = "pg-"+id, &gs
	} else if spec.PlacementGroup != "" {
		g, err := resolveGroup(v, spec.PlacementGroup)
		if err != nil {
			return headapi.Made{}, err
		}
		cmd.Group, cmd.Spec.PlacementGroup = g.ID, g.ID
	} else {
		gs, errs := groupSpecOf(spec)
		if len(errs) > 0 {
			return headapi.Made{}, invalid(errs)
		}
		if p := h.neverSized(v, spec, gs); p != nil {
			return headapi.Made{}, p
		}
		if p := h.neverSpares(v, spec, gs); p != nil {
			return headapi.Made{}, p
		}
		cmd.Group, cmd.GroupSpec = "pg-"+id, &gs
		submit = func() (any, error) { return h.arrive(ctx, h.submission(cmd)) }
	}
	r, err := submit()
	// The entry may still come to be applied; its package stays for this life of the head.
	unsure = errors.Is(err, ErrOutcomeUnknown)
	return h.made(r, err)
}

// fromStep refuses a step that is not committed: rolling back to it would free every
// step that is. Step 0 is the beginning.
func fromStep(v *state.View, s api.JobSpec) error {
	from := s.Checkpoint.FromStep
	if from == nil || *from == 0 {
		return nil
	}
	var steps []string
	for _, c := range v.Checkpoints(state.RunName(s)) {
		if c.State != state.CheckpointCommitted {
			continue
		}
		if c.Step == *from {
			return nil
		}
		steps = append(steps, fmt.Sprint(c.Step))
	}
	have := "none"
	if len(steps) > 0 {
		have = strings.Join(steps, ", ")
	}
	p := problem(422, "TRP-K404", api.ExitNotFound, "no such step", "run %s has no committed step %d; committed: %s", state.RunName(s), *from, have)
	p.Help = "troupe checkpoint list " + state.RunName(s)
	return p
}

func (h *Head) made(r any, err error) (headapi.Made, error) {
	if err != nil {
		return headapi.Made{}, h.problemOf(err)
	}
	m, ok := r.(*state.Made)
	if !ok {
		return headapi.Made{}, fmt.Errorf("a creation answered %T", r)
	}
	out := headapi.Made{ID: m.ID, Index: h.Store.View().Index()}
	if m.At != 0 {
		out.Previously = time.Unix(0, m.At)
	}
	h.Kick()
	return out, nil
}

// never refuses at once what the cluster could not hold even when empty, or what no quota
// would let start.
func (h *Head) never(v *state.View, spec api.GroupSpec) *api.Problem {
	s := h.snapshotOf(v)
	if r := schedule.NeverAllowed(s, &spec); r != nil {
		p := problem(422, "TRP-S014", api.ExitNever, "can never be placed", "%s", r.Text)
		p.Help = "ask for less, or have the quota raised: troupe quota get " + spec.Tenant
		return p
	}
	if len(s.Nodes) == 0 {
		return nil
	}
	r := schedule.Never(s, spec)
	if r == nil {
		return nil
	}
	p := problem(422, "TRP-S014", api.ExitNever, "can never be placed", "%s", r.Text)
	p.Help = "ask for less, or add nodes: troupe node list"
	if undeclared(v, spec) {
		p.Help = "troupe topology get lists levels and capacities; troupe topology apply declares them"
	}
	return p
}

// undeclared: it names a level or a capacity that there is not.
func undeclared(v *state.View, spec api.GroupSpec) bool {
	level := func(l api.Level) bool { return l.Name == spec.Level }
	return spec.Level != "" && !slices.ContainsFunc(v.Settings().Levels, level) ||
		slices.ContainsFunc(spec.Uses, func(a api.Amount) bool { return v.Capacity(a.Of) == nil })
}

func resolveGroup(v *state.View, id string) (*state.Group, error) {
	if g := v.Group(id); g != nil {
		return g, nil
	}
	var found []*state.Group
	if id != "" {
		for _, g := range v.Groups() {
			if strings.HasPrefix(g.ID, id) {
				found = append(found, g)
			}
		}
	}
	switch len(found) {
	case 0:
		return nil, notFound("pg", id)
	case 1:
		return found[0], nil
	}
	return nil, problem(400, "TRP-A400", api.ExitUsage, "ambiguous id", "%q matches %d placement groups", id, len(found))
}

// CreateGroup makes a placement group, placed in the same entry when it fits now.
func (h *Head) CreateGroup(ctx context.Context, spec api.GroupSpec, key headapi.Idempotency) (headapi.Made, error) {
	if err := h.leader(); err != nil {
		return headapi.Made{}, err
	}
	v := h.Store.View()
	if made, ok, err := h.replay(v, key); ok || err != nil {
		return made, err
	}
	def(&spec.Strategy, api.Pack)
	def(&spec.Tenant, "default")
	def(&spec.Queue, "default")
	spec.Bundles = slices.Clone(spec.Bundles)
	for i := range spec.Bundles {
		if spec.Bundles[i].Resources == (api.Resources{}) {
			spec.Bundles[i].CPU = defaultCPU
		}
	}
	errs := append(schedule.Validate(spec), h.pastDeadline(spec.Deadline)...)
	if spec.Name != "" && !declare.IsName(spec.Name) {
		errs = append(errs, api.FieldError{Pointer: "/name", Detail: fmt.Sprintf("%q is not a name", cut(spec.Name, 80))})
	}
	if len(errs) > 0 {
		return headapi.Made{}, invalid(errs)
	}
	spec.Pool = poolOf(v, asking{tenant: spec.Tenant, queue: spec.Queue, pool: spec.Pool})
	if p := admit(v, asking{spec.Tenant, spec.Queue, spec.Pool, spec.Priority, nil}); p != nil {
		return headapi.Made{}, p
	}
	id, err := h.newID(cmp.Or(spec.Name, "pg"))
	if err != nil {
		return headapi.Made{}, err
	}
	user := h.who(ctx)
	r, err := h.arrive(ctx, &arrival{id: id, spec: spec, command: func(v *state.View, placement []api.Placed) (command, error) {
		if placement == nil { // what fits now can be
			if p := h.never(v, spec); p != nil {
				return command{}, p
			}
		}
		return command{state.KindCreateGroup, state.CreateGroup{
			ID: id, Spec: spec, Placement: placement, Key: key.Key, Fingerprint: key.Fingerprint, User: user,
		}}, nil
	}})
	return h.made(r, err)
}

// RemoveGroup returns when nothing is charged to the group any more (P11).
func (h *Head) RemoveGroup(ctx context.Context, id string) (api.Group, error) {
	if err := h.leader(); err != nil {
		return api.Group{}, err
	}
	g, err := resolveGroup(h.Store.View(), id)
	if err != nil {
		return api.Group{}, err
	}
	if g.Job != "" {
		return api.Group{}, problem(409, "TRP-A409", api.ExitConflict, "conflict", "placement group %s belongs to job %s and ends with it; stop the job", g.ID, g.Job)
	}
	if _, err := h.propose(ctx, state.KindRemoveGroup, state.RemoveGroup{Group: g.ID, Why: "removed on request"}); err != nil {
		return api.Group{}, h.problemOf(err)
	}
	out := groupView(h.Store.View(), g)
	out.State, out.Removed = api.GroupRemoved, h.Clock.Now()
	unreachable, err := h.until(ctx, func(v *state.View) (bool, []string) {
		left := v.HoldsOf(g.ID)
		nodes := make([]string, 0, len(left))
		for _, hold := range left {
			nodes = append(nodes, hold.Node)
		}
		return len(left) == 0, nodes
	})
	if err != nil {
		return api.Group{}, err
	}
	if len(unreachable) > 0 {
		return api.Group{}, h.unreachable("placement group "+g.ID+" is removed", unreachable)
	}
	return out, nil
}

// TokenRole answers for a presented token; empty for an unknown or revoked one.
func (h *Head) TokenRole(token string) string {
	sum := sha256.Sum256([]byte(token))
	t := h.Store.View().Token(hex.EncodeToString(sum[:]))
	if t == nil || t.Revoked != 0 {
		return ""
	}
	return t.Role
}

// Changed closes at the next change of the state.
func (h *Head) Changed() <-chan struct{} { return h.Store.Changed() }

// JobChanged closes once the record of a job is another one; of an id that is none, at the
// next change of the state.
func (h *Head) JobChanged(id string) <-chan struct{} {
	changed, v := h.Store.Changed(), h.Store.View()
	if j, err := v.Resolve(id); err == nil {
		return v.JobChanged(j.ID)
	}
	return changed
}

// GroupChanged is JobChanged of a placement group.
func (h *Head) GroupChanged(id string) <-chan struct{} {
	changed, v := h.Store.Changed(), h.Store.View()
	if g, err := resolveGroup(v, id); err == nil {
		return v.GroupChanged(g.ID)
	}
	return changed
}

// Index is the newest applied index.
func (h *Head) Index() uint64 { return h.Store.View().Index() }

// Version says what this binary is.
func (h *Head) Version() api.Version { return h.Options.Version }

// Ready says whether requests can be served now.
func (h *Head) Ready(context.Context) error {
	if h.Store.View().Meta().Cluster == "" {
		return errors.New("the cluster record is not there yet")
	}
	return h.leader()
}
