package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

func TestQueueFile(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{
			"a tree, with quantities as people write them",
			`
queues:
  - name: nlp
    tenant: true
    guaranteed: {gpu: 8, "gpu:H200": 0.5, cpu: 64, memory: 2TiB, licence: 3}
    limit: {gpu: 12}
    lend: {gpu: 2}
    weight: 0
    maxWait: 2h
  - {name: night, parent: nlp, order: short, pools: [a, b]}
`,
			`[{"name":"nlp","tenant":true,"guaranteed":{"cpu":64000,"gpu":8000,"gpu:H200":500,"licence":3,"memory":2199023255552},` +
				`"limit":{"gpu":12000},"lend":{"gpu":2000},"weight":0,"maxWait":"2h"},{"name":"night","parent":"nlp","order":"short","pools":["a","b"]}]`,
		},
		{"JSON as well", `{"queues": [{"name": "q", "limit": {"gpu": "0.5"}}]}`, `[{"name":"q","limit":{"gpu":500}}]`},
		{"none at all", "queues: []\n", "null"},
		{"an empty file", "", "q.yaml is empty; it needs a list named queues, which may be [] to remove all"},
		{"no list", "{}\n", "q.yaml:1:1: no list named queues; write queues: [] to remove all"},
		{"a list of its own", "- name: a\n", "q.yaml:1:1: a list, where a mapping belongs"},
		{"a wrong name", "queues:\n  - name: a\n    garanteed: {gpu: 1}\n", `q.yaml:3:5: unknown field "garanteed"; did you mean guaranteed?`},
		{"a name twice", "queues:\n  - name: a\n    name: b\n", `q.yaml:3:5: "name" stands here twice`},
		{"no number of devices", "queues:\n  - name: a\n    limit: {gpu: many}\n", `q.yaml:3:18: "many" of "gpu": a number belongs here, as 8 or 0.5`},
		{"no bytes", "queues:\n  - name: a\n    limit:\n      memory: 5 apples\n", `q.yaml:4:15: "5 apples" of "memory": bytes belong here, as 512GiB`},
		{"parts of a licence", "queues:\n  - name: a\n    limit: {licence: 1.5}\n", `q.yaml:3:22: "1.5" of "licence": a whole number belongs here`},
		{"too many", "queues:\n  - name: a\n    limit: {gpu: 99999999999999999999}\n", `q.yaml:3:18: "99999999999999999999" of "gpu": a number belongs here, as 8 or 0.5`},
		{"below zero", "queues:\n  - name: a\n    lend: {gpu: -1}\n", `q.yaml:3:17: "-1" of "gpu": a number belongs here, as 8 or 0.5`},
		{"a wait without a unit", "queues:\n  - {name: a, maxWait: soon}\n", "q.yaml:2:24: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			list, err := decodeQueues("q.yaml", []byte(tc.in))
			if x, ok := errors.AsType[*exitError](err); ok {
				if x.help != queueFileHelp || !strings.HasPrefix(x.text, tc.want) {
					t.Errorf("error %q (%s), want %q", x.text, x.help, tc.want)
				}
				return
			}
			got, _ := json.Marshal(list)
			if string(got) != tc.want {
				t.Errorf("read %s %v\nwant %s", got, err, tc.want)
			}
		})
	}
}

// A file of queues of any bytes is read or refused, never worse; what is refused names the
// file and is refused with the malformed code.
func FuzzQueueFile(f *testing.F) {
	for _, s := range []string{
		"queues: []", "queues: [{name: a, limit: {gpu: 1}}]", "queues:\n- &a {name: x}\n- *a", "{", "\x00", "queues: {a: 1}", "queues: [null]",
		"queues: [{limit: {? [a] : b}}]", "queues: [{lend: {gpu: 1e309}}]", "queues: [{weight: 9223372036854775808}]", "queues: [{paused: !!binary aGk=}]",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := decodeQueues("f.yaml", data)
		var x *exitError
		if err != nil && (!errors.As(err, &x) || x.code != api.ExitBadInput || !strings.HasPrefix(x.text, "f.yaml")) {
			t.Fatalf("%v", err)
		}
		for _, q := range list {
			if q == nil {
				t.Fatal("a queue that is nothing")
			}
		}
	})
}
