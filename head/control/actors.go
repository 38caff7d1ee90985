package control

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

// callerLife is how long an SDK may call actors with one set of credentials.
const callerLife = time.Hour

// Credentials of actor hosts and callers are signed, not stored: the user name says
// who and until when, the password is its HMAC under a secret of this cluster.
func sign(secret []byte, user string) string {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(user))
	return hex.EncodeToString(m.Sum(nil))
}

// AuthorizeActor answers for a user that an earlier BusAccess named; ok false for any
// other, a wrong password or one that is over. An actor host may only answer calls
// to its own actor, a caller may only call.
func AuthorizeActor(secret []byte, user, password string, now time.Time) (bus.Permission, bool) {
	if len(secret) == 0 || !hmac.Equal([]byte(sign(secret, user)), []byte(password)) {
		return bus.Permission{}, false
	}
	kind, rest, _ := strings.Cut(user, "/")
	switch kind {
	case "actor":
		id, gen, ok := strings.Cut(rest, "/")
		generation, err := strconv.ParseUint(gen, 10, 64)
		if !ok || err != nil {
			return bus.Permission{}, false
		}
		return bus.Permission{Subscribe: []string{wire.ActorCall(id, generation)}, Inbox: wire.InboxPrefix("actor-" + id)}, true
	case "sdk":
		id, until, ok := strings.Cut(rest, "/")
		sec, err := strconv.ParseInt(until, 10, 64)
		if !ok || err != nil || now.Unix() > sec {
			return bus.Permission{}, false
		}
		return bus.Permission{Publish: []string{wire.AnyActorCall}, Inbox: wire.InboxPrefix("sdk-" + id)}, true
	}
	return bus.Permission{}, false
}

// actorBus is how the host of one generation of an actor reaches the bus.
func (h *Head) actorBus(j *state.Job, at *state.Attempt) api.BusAccess {
	user := fmt.Sprintf("actor/%s/%d", j.ID, at.Generation)
	return api.BusAccess{URLs: h.BusURLs, User: user, Password: sign(h.BusSecret, user), InboxPrefix: wire.InboxPrefix("actor-" + j.ID)}
}

// noActors: over a bus that wants certificates neither actors nor callers have one.
func noActors() *api.Problem {
	p := problem(422, "TRP-A426", api.ExitNever, "no actors here", "actors need a cluster on loopback: beyond it the bus takes certificates of nodes alone")
	p.Help = "run actors on a cluster of one machine: troupe up"
	return p
}

// BusAccess lets an SDK call actors over the bus for an hour.
func (h *Head) BusAccess(context.Context) (api.BusAccess, error) {
	if h.SignNode != nil {
		return api.BusAccess{}, noActors()
	}
	var b [8]byte
	if err := h.Random(b[:]); err != nil {
		return api.BusAccess{}, fmt.Errorf("draw a caller id: %w", err)
	}
	id := hex.EncodeToString(b[:])
	user := fmt.Sprintf("sdk/%s/%d", id, h.Clock.Now().Add(callerLife).Unix())
	return api.BusAccess{URLs: h.BusURLs, User: user, Password: sign(h.BusSecret, user), InboxPrefix: wire.InboxPrefix("sdk-" + id)}, nil
}

func (h *Head) actorView(v *state.View, j *state.Job) api.Actor {
	a := api.Actor{ID: j.ID, Name: j.Spec.Actor.Name, Namespace: j.Spec.Actor.Namespace, Class: j.Spec.Actor.Class}
	last := j.Last()
	switch {
	case j.State.Terminal():
		a.State = "DEAD"
	case j.State == api.Running:
		a.State = "ALIVE"
	case last != nil && last.Number > 0 || j.State == api.Recovering:
		a.State = "RESTARTING"
	default:
		a.State = "PENDING_CREATION"
	}
	if last == nil {
		return a
	}
	a.Restarts, a.Generation = last.Number, last.Generation
	a.Subject = wire.ActorCall(j.ID, last.Generation)
	if len(last.Ranks) > 0 {
		a.Node = nodeName(v, last.Ranks[0].Node)
		if al := v.Alloc(last.Ranks[0].Alloc); al != nil && al.Generation == last.Generation && len(al.PIDs) > 0 {
			a.PID = al.PIDs[0].PID
		}
	}
	return a
}

// Actors lists all, newest first.
func (h *Head) Actors(context.Context) ([]api.Actor, uint64, error) {
	v := h.Store.View()
	out := make([]api.Actor, 0)
	jobs := v.Jobs()
	for _, job := range slices.Backward(jobs) {
		if job.Spec.Actor != nil {
			out = append(out, h.actorView(v, job))
		}
	}
	return out, v.Index(), nil
}

// resolveActor finds an actor by id, unique prefix, name or namespace/name; a live
// one wins over dead ones of the same name.
func (h *Head) resolveActor(v *state.View, id string) (*state.Job, error) {
	ns, name, named := strings.Cut(id, "/")
	if !named {
		ns, name = "", id
	}
	if j := v.ActorNamed(ns, name); j != nil {
		return j, nil
	}
	j, err := v.Resolve(id)
	if err != nil || j.Spec.Actor == nil {
		return nil, notFound("actor", id)
	}
	return j, nil
}

// Actor by id, unique prefix, name or namespace/name.
func (h *Head) Actor(_ context.Context, id string) (api.Actor, error) {
	v := h.Store.View()
	j, err := h.resolveActor(v, id)
	if err != nil {
		return api.Actor{}, err
	}
	return h.actorView(v, j), nil
}

// KillActor ends an actor for good, or with restart lets it come back under a new
// generation, which its budget is charged for.
func (h *Head) KillActor(ctx context.Context, id string, restart bool) (api.Actor, error) {
	if err := h.leader(); err != nil {
		return api.Actor{}, err
	}
	v := h.Store.View()
	j, err := h.resolveActor(v, id)
	if err != nil {
		return api.Actor{}, err
	}
	if !restart {
		if _, err := h.Stop(ctx, j.ID, time.Nanosecond, "actor killed on request"); err != nil {
			return api.Actor{}, err
		}
		return h.Actor(ctx, j.ID)
	}
	last := j.Last()
	if j.State.Terminal() || last == nil || last.Ended != 0 {
		return h.actorView(v, j), nil
	}
	ledger := j.Ledger
	ledger.Failed++
	end := &state.AttemptEnd{Cause: api.CauseUser, Failure: &api.Failure{Rank: 0, Message: "killed on request"}, Ledger: ledger}
	cmd := state.Supervise{Job: j.ID, Attempt: last.Number, End: end, State: api.Recovering}
	if n := j.Spec.Actor.MaxRestarts; n >= 0 && ledger.Failed > n {
		code := int64(137)
		cmd.State, cmd.ExitCode = api.Failed, &code
		cmd.Reason = &api.Reason{Code: api.ReasonBudget, Text: fmt.Sprintf("killed on request; %d of %d restarts were used", n, n)}
	}
	if _, err := h.propose(ctx, state.KindSupervise, cmd); err != nil {
		return api.Actor{}, h.problemOf(err)
	}
	if cmd.State.Terminal() {
		h.ck.ended(j.Run())
	}
	h.Kick()
	return h.Actor(ctx, j.ID)
}
