package cli

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// queueShapes are the commands of tenants and queues, and the verbs by which jobs wait, on
// a node with two devices.
func queueShapes(t *testing.T, h *home, check func(name string, code int, args ...string) result) {
	t.Helper()
	h.write("queues.yaml", "queues:\n- name: short\n  parent: nlp\n  order: short\n  maxWait: 2h\n")
	h.write("topology.yaml", "levels:\n- {name: rack, label: rack}\ncapacities:\n- {name: storage, total: 350, overhead: 10, unit: MiB/s}\nlinks:\n- {a: box, healthy: true}\n")
	h.write("plan.yaml", "name: later\ncommand: [\"true\"]\ntenant: nlp\nresources: {gpus: 1}\n")
	h.write("never.yaml", "name: huge\ncommand: [\"true\"]\nresources: {gpus: 64}\n")
	h.want(0, "pg", "remove", "big-") // and its devices are free
	check("queue-create", 0, "queue", "create", "nlp", "--tenant", "--guarantee", "gpu=1", "--limit", "gpu=2", "--access", "faces")
	check("queue-apply", 0, "queue", "apply", "queues.yaml")
	check("queue-set", 0, "queue", "set", "nlp", "--weight", "2")
	check("queue-list", 0, "queue", "list")
	check("queue-get", 0, "queue", "get", "nlp")
	check("queue-pause", 0, "queue", "pause", "nlp", "--reason", "the store is moved")
	check("queue-resume", 0, "queue", "resume", "nlp")
	check("quota-set", 0, "quota", "set", "nlp", "--limit", "gpu=2")
	check("topology-apply", 0, "topology", "apply", "topology.yaml")
	check("topology-get", 0, "topology", "get")
	check("reservation-create", 0, "reservation", "create", "demo", "--tenant", "nlp", "--count", "1", "--start", "300h", "--for", "1h")
	check("reservation-list", 0, "reservation", "list")
	check("reservation-remove", 0, "reservation", "remove", "demo")
	check("plan", 0, "plan", "plan.yaml")
	h.want(78, "plan", "never.yaml")

	first := strings.Fields(h.want(0, "run", "--detach", "-o", "name", "--name", "first", "--gpus", "1", "--tenant", "nlp", "--", "sleep", "600").out)[0]
	second := strings.Fields(h.want(0, "run", "--detach", "-o", "name", "--name", "second", "--gpus", "1", "--tenant", "nlp", "--hold", "--", "sleep", "600").out)[0]
	h.want(0, "job", "wait", first, "--for", "running")
	check("job-release", 0, "job", "release", second)
	check("queue-order", 0, "queue", "order", "nlp", "--explain")
	h.want(1, "plan", "plan.yaml") // one is guaranteed, and in use
	check("job-hold", 0, "job", "hold", second, "--reason", "not yet")
	check("job-edit", 0, "job", "edit", second, "--queue", "short", "--priority", "7", "--time", "2h")
	check("quota-get", 0, "quota", "get", "nlp")
	check("quota-list", 0, "quota", "list")
	check("job-suspend", 0, "job", "suspend", first, "--deadline", "1s", "-q")
	check("job-resume", 0, "job", "resume", first)
	h.want(0, "stop", first, second, "--yes", "--grace", "1s")
	var again struct{ ID string }
	if err := json.Unmarshal([]byte(check("job-requeue", 0, "job", "requeue", second).out), &again); err != nil {
		t.Fatal(err)
	}
	h.want(0, "stop", again.ID, "--yes", "--grace", "1s")
	check("usage-report", 0, "usage", "report", "--by", "user")
	eventually(t, "nothing is charged to the tenant", func() error {
		if out := h.want(0, "quota", "get", "nlp", "-o", "json").out; strings.Contains(out, `"charged": 1000`) {
			return errors.New(out)
		}
		return nil
	})
	check("queue-remove", 0, "queue", "remove", "short")
	h.want(0, "queue", "remove", "nlp")
	h.want(0, "pg", "create", "--bundles", "1", "--gpus", "2", "--name", "big")
}
