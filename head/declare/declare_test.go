package declare

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/head/schedule"
	"github.com/troupe-runtime/troupe/head/state"
	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/wire"
)

var now = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// cluster is a state with one node, a level and a queue.
func cluster(t testing.TB) *state.Store {
	t.Helper()
	s, err := state.New()
	if err != nil {
		t.Fatal(err)
	}
	s.CheckAlways()
	levels := []api.Level{{Name: "rack", Label: "rack"}}
	put(t, s, state.KindCreateCluster, state.CreateCluster{Cluster: "c", Life: "00000000"})
	put(t, s, state.KindRegisterNode, state.RegisterNode{ID: "n", Info: wire.NodeInfo{
		Name: "gpu-1", CPU: 1000, Memory: 1 << 30, BootID: "b", Session: "s", Level: wire.Level, Labels: map[string]string{"rack": "r"},
		GPUs: []api.GPU{{UUID: "G", Model: "m", Usable: 1 << 30}},
	}})
	put(t, s, state.KindPutSettings, state.PutSettings{Levels: &levels})
	put(t, s, state.KindPutQueues, state.PutQueues{Queues: []api.Queue{{Name: "team", Tenant: true}, {Name: "night", Parent: "team"}}})
	return s
}

func put(t testing.TB, s *state.Store, kind state.Kind, body any) {
	t.Helper()
	data, err := state.Encode(kind, now.UnixNano(), body)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Apply(s.View().Index()+1, 1, data)
	if refused, ok := r.(*state.Refused); ok || err != nil {
		t.Fatalf("what was found right is refused: %v %v", refused, err)
	}
}

// What is wrong with a reservation is told by the field that it is wrong with.
func TestReservation(t *testing.T) {
	v := cluster(t).View()
	for _, c := range []struct{ name, change, want string }{
		{"right", `{}`, ""},
		{"by name", `{"count":0,"nodes":["gpu-1"]}`, ""},
		{"for the queue that everybody has", `{"tenant":"","queue":"default"}`, ""},
		{"no name", `{"name":""}`, "/name"},
		{"ends first", `{"end":"2030-01-01T00:00:00Z"}`, "/end"},
		{"over", `{"start":"2029-01-01T00:00:00Z","end":"2029-01-02T00:00:00Z"}`, "/end it is over"},
		{"no end in sight", `{"end":"9999-12-31T00:00:00Z"}`, "/end the year 9999"},
		{"from the beginning of time", `{"start":"0001-01-01T00:00:01Z"}`, "/start the year 1"},
		{"for two", `{"queue":"night"}`, "/tenant"},
		{"for nobody", `{"tenant":""}`, "/tenant"},
		{"for a stranger", `{"tenant":"else"}`, `/tenant there is no tenant "else"`},
		{"for a queue as a tenant", `{"tenant":"night"}`, `/tenant there is no tenant "night"`},
		{"no queue", `{"tenant":"","queue":"team"}`, `/queue there is no queue "team"`},
		{"no job", `{"tenant":"","job":"x"}`, `/job there is no job "x"`},
		{"nodes and a count", `{"nodes":["gpu-1"]}`, "/nodes"},
		{"a node twice", `{"count":0,"nodes":["gpu-1","n"]}`, "/nodes/1"},
		{"no node", `{"count":0,"nodes":["gpu-2"]}`, `/nodes/0 there is no node "gpu-2"; there are gpu-1`},
		{"less than nothing", `{"count":-1}`, "/count"},
		{"too many", `{"count":100001}`, "/count"},
		{"no level", `{"level":"row"}`, `/level there is no level "row"`},
		{"no pool", `{"pool":"` + strings.Repeat("p", 200) + `"}`, "/pool"},
		{"an endless reason", `{"tenant":"","maintenance":"` + strings.Repeat("x", 5000) + `"}`, "/maintenance"},
	} {
		r := api.Reservation{Name: "r", Tenant: "team", Count: 1, Start: now, End: now.Add(time.Hour)}
		if err := json.Unmarshal([]byte(c.change), &r); err != nil {
			t.Fatal(err)
		}
		var told []string
		for _, e := range Reservation(&r, v, now) {
			told = append(told, e.Pointer+" "+e.Detail)
		}
		if text := strings.Join(told, "\n"); (c.want == "") != (text == "") || !strings.Contains(text, c.want) {
			t.Errorf("%s: %q, want %q", c.name, text, c.want)
		}
	}
}

// declared is all that an operator may declare at once.
type declared struct {
	Queues       []api.Queue          `json:"queues"`
	Reservations []api.Reservation    `json:"reservations"`
	Capacities   []api.Capacity       `json:"capacities"`
	Levels       []api.Level          `json:"levels"`
	Policy       *api.SchedulerPolicy `json:"policy"`
}

// Whatever is declared is refused with a pointer and a remedy, or the state takes it, and the
// scheduler plans with it.
func FuzzDeclare(f *testing.F) {
	for _, s := range []string{
		`{"queues":[{"name":"a","tenant":true,"guaranteed":{"gpu":8000,"gpu:m":1000},"limit":{"gpu":9000},"lend":{"gpu":0},"weight":0,"maxPriority":-5,"pools":["p"],"access":["x"]},{"name":"b","parent":"a","order":"deadline","maxWait":"1h"}]}`,
		`{"queues":[{"name":"a","parent":"b","tenant":true},{"name":"b","parent":"a","tenant":true}]}`, `{"queues":[{"name":"a","parent":"a"}]}`, `{"queues":[{"name":"a"},{"name":"a"}]}`,
		`{"queues":[{"name":"a","tenant":true,"guaranteed":{"gpu":1}},{"name":"b","parent":"a","guaranteed":{"gpu":9223372036854775807}},{"name":"c","parent":"a","guaranteed":{"gpu":9223372036854775807}}]}`,
		`{"queues":[{"name":"a","guaranteed":{"gpu":-1,"":1,"cpu":-9223372036854775808}}]}`, `{"queues":[{"name":"a","weight":-1,"maxPriority":9223372036854775807,"order":"x"}]}`,
		`{"queues":[{"name":"","paused":"\u0000","maxWait":"106751d"}]}`, `{"queues":[{"name":"night"}]}`,
		`{"reservations":[{"name":"r","start":"2030-01-02T04:00:00Z","end":"2030-01-02T05:00:00Z","tenant":"team","count":1}]}`,
		`{"reservations":[{"name":"r","start":"0001-01-01T00:00:00Z","end":"9999-12-31T23:59:59Z","maintenance":"x","nodes":["n","gpu-1"]}]}`,
		`{"reservations":[{"name":"r","count":-1,"level":"row","pool":"p","job":"j","queue":"q"}]}`,
		`{"capacities":[{"name":"nfs","total":9223372036854775807,"overhead":1,"level":"rack","unit":"MiB/s"}]}`, `{"capacities":[{"name":"gpu","total":-1,"overhead":5}]}`,
		`{"levels":[{"name":"rack","label":"rack"},{"name":"row","label":"rack"},{"name":"rack","label":""}]}`, `{"policy":{"order":"luck","maxLost":-1,"protect":"9999h","linkFresh":"1ns"}}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var d declared
		if json.Unmarshal([]byte(text), &d) != nil {
			return
		}
		s := cluster(t)
		wrong := func(errs []api.FieldError) bool {
			for _, e := range errs {
				if e.Detail == "" || e.Pointer != "" && !strings.HasPrefix(e.Pointer, "/") || len(e.Detail) > 2000 {
					t.Errorf("%s: %+v", text, e)
				}
			}
			return len(errs) > 0
		}
		if len(d.Levels) > 0 && !wrong(schedule.ValidateLevels(d.Levels)) {
			put(t, s, state.KindPutSettings, state.PutSettings{Levels: &d.Levels})
		}
		if d.Policy != nil && !wrong(schedule.ValidatePolicy(d.Policy)) {
			put(t, s, state.KindPutSettings, state.PutSettings{Policy: d.Policy})
		}
		for i := range d.Capacities {
			if !wrong(Capacity(&d.Capacities[i], s.View())) {
				put(t, s, state.KindPutCapacities, state.PutCapacities{Capacities: d.Capacities[i : i+1]})
			}
		}
		if len(d.Queues) > 0 && !wrong(Queues(d.Queues, nil, s.View())) {
			put(t, s, state.KindPutQueues, state.PutQueues{Queues: d.Queues, Whole: true})
		}
		for i := range d.Reservations {
			if !wrong(Reservation(&d.Reservations[i], s.View(), now)) {
				put(t, s, state.KindPutReservation, state.PutReservation{Reservation: d.Reservations[i]})
			}
		}
	})
}
