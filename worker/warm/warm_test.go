package warm

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParse(t *testing.T) {
	words := strings.Fields
	cases := []struct {
		line string
		want Command
		why  string // a part of it
		ok   bool
	}{
		{"python train.py", Command{Program: "python", Script: "train.py"}, "", true},
		{"/usr/bin/python3.12 -u train.py --lr 1 -O", Command{Program: "/usr/bin/python3.12", Flags: words("-u"), Script: "train.py", Args: words("--lr 1 -O")}, "", true},
		{"python3 -uOB -W ignore -Werror a.py", Command{Program: "python3", Flags: words("-uOB -W ignore -Werror"), Script: "a.py"}, "", true},
		{"python -P a.py", Command{Program: "python", Flags: words("-P"), Script: "a.py", Safe: true}, "", true},
		{"python -m pkg.train x -m", Command{Program: "python", Module: "pkg.train", Args: words("x -m")}, "", true},
		{"python -um pkg", Command{Program: "python", Flags: words("-u"), Module: "pkg"}, "", true},
		{"python -umpkg x", Command{Program: "python", Flags: words("-u"), Module: "pkg", Args: words("x")}, "", true},
		{"python -c pass", Command{}, "", false},
		{"python", Command{}, "", false},
		{"python -", Command{}, "", false},
		{"python -m", Command{}, "", false},
		{"python -W", Command{}, "", false},
		{"python --version", Command{}, "", false},
		{"python -I a.py", Command{}, "-I", false},
		{"python -X dev a.py", Command{}, "-X", false},
		{"python -uE a.py", Command{}, "-E", false},
		{"python -v a.py", Command{}, "-v", false},
		{"torchrun a.py", Command{}, "", false},
		{"sh -c python", Command{}, "", false},
		{"python3-config a", Command{}, "", false},
		{"", Command{}, "", false},
	}
	for _, c := range cases {
		got, why, ok := Parse(words(c.line))
		if ok != c.ok || !strings.Contains(why, c.why) || c.why == "" && why != "" {
			t.Errorf("%q: %v %q, want %v %q", c.line, ok, why, c.ok, c.why)
		}
		if ok && !(len(got.Args) == 0 && len(c.want.Args) == 0 && setArgs(&got, &c.want)) && !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %+v, want %+v", c.line, got, c.want)
		}
	}
}

// setArgs makes an empty list and none alike, then compares.
func setArgs(a, b *Command) bool {
	a.Args, b.Args = nil, nil
	return reflect.DeepEqual(*a, *b)
}

// A command that is taken apart is the head of the forkserver's and the arguments, and
// nothing else.
func TestParsedPartsMakeTheCommand(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.SampledFrom([]string{"-u", "-W", "-Wx", "-m", "-mx", "-um", "-P", "-c", "-I", "a.py", "x", "", "-", "--", "-X", "é"})
		argv := append([]string{"python3"}, rapid.SliceOfN(word, 0, 6).Draw(t, "words")...)
		c, _, ok := Parse(argv)
		if !ok {
			return
		}
		if (c.Script == "") == (c.Module == "") {
			t.Fatalf("%q: script %q and module %q", argv, c.Script, c.Module)
		}
		got := strings.Join(append(c.Head(), c.Args...), "\x00")
		want := strings.Join(argv, "\x00")
		// -umx and -u -m x are the same to the interpreter.
		if c.Script != "" && got != want || !strings.HasSuffix(want, strings.Join(c.Args, "\x00")) {
			t.Fatalf("%q is not %q", got, want)
		}
	})
}

func TestDiffers(t *testing.T) {
	base := func() *Spec {
		return &Spec{
			Tenant: "a", UID: 1, Program: "/bin/python", Command: Command{Program: "python", Script: "t.py", Args: []string{"1"}}, Dir: "/w",
			Env: []string{"RANK=0", "OMP_NUM_THREADS=1", "EVENTS=/a", "HF_HOME=/h", "TROUPE_SOCKET=/s", "CUDA_VISIBLE_DEVICES=0"},
		}
	}
	set := func(e ...string) func(*Spec) { return func(s *Spec) { s.Env = append(s.Env, e...) } }
	cases := []struct {
		name   string
		change func(*Spec)
		same   bool
	}{
		{"nothing", func(*Spec) {}, true},
		{"arguments", func(s *Spec) { s.Command.Args = []string{"2", "3"} }, true},
		{"a rank's own", func(s *Spec) {
			s.Env = []string{"RANK=3", "OMP_NUM_THREADS=1", "EVENTS=/a", "HF_HOME=/h", "TROUPE_SOCKET=/t", "CUDA_VISIBLE_DEVICES=1"}
		}, true},
		{"not read", set("WANDB_RUN=7"), true},
		{"read at import", func(s *Spec) { s.Env[3] = "HF_HOME=/other" }, false},
		{"read at import, set", set("HF_TOKEN=x"), false},
		{"read by libraries", func(s *Spec) { s.Env[1] = "OMP_NUM_THREADS=2" }, false},
		{"read by libraries, set", set("LD_PRELOAD=/x.so"), false},
		{"the interpreter's", set("PYTHONHASHSEED=0"), false},
		{"tenant", func(s *Spec) { s.Tenant = "b" }, false},
		{"user", func(s *Spec) { s.UID = 2 }, false},
		{"interpreter", func(s *Spec) { s.Program = "/usr/bin/python" }, false},
		{"script", func(s *Spec) { s.Command.Script = "u.py" }, false},
		{"flags", func(s *Spec) { s.Command.Flags = []string{"-O"} }, false},
		{"folder", func(s *Spec) { s.Dir = "/v" }, false},
	}
	for _, c := range cases {
		o := base()
		c.change(o)
		for _, why := range []string{base().Differs(o, []string{"HF_HOME", "HF_TOKEN"}), o.Differs(base(), []string{"HF_HOME", "HF_TOKEN"})} {
			if (why == "") != c.same {
				t.Errorf("%s: %q", c.name, why)
			}
		}
	}
}

func TestEnviron(t *testing.T) {
	s := Spec{Env: []string{"TROUPE_COOKIE=c", "RANK=1", "TROUPE_RUN=r", "A=b", "PYTHONPATH=/p:/q", "MASTER_PORT=3"}}
	want := []string{"TROUPE_COOKIE=c", "A=b", "PYTHONPATH=/hook:/p:/q", "TROUPE_WARM=/s"}
	if got := s.Environ("/hook", "TROUPE_WARM=/s"); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := Unfit([]string{"A=b", "PYTHONVERBOSE=1"}); got != "PYTHONVERBOSE" {
		t.Errorf("unfit: %q", got)
	}
}

func TestThreads(t *testing.T) {
	for env, want := range map[string]string{
		"": "OMP_NUM_THREADS", "OMP_NUM_THREADS=1": "", "OMP_NUM_THREADS=4": "OMP_NUM_THREADS",
		"OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=2": "OPENBLAS_NUM_THREADS", "OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=8": "",
	} {
		if got := Threads(strings.Fields(env)); got != want {
			t.Errorf("%q: %q, want %q", env, got, want)
		}
	}
}

// What a node learned is bounded, forgets the oldest, and survives a torn file.
func TestStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "warm.json")
	s := NewStore(path)
	for i := range maxScripts + 10 {
		err := s.Update("python", fmt.Sprintf("/s%d.py", i), int64(i), func(l *Learned) {
			l.Torch = true
			for m := range maxModules + 5 {
				l.Modules = append(l.Modules, fmt.Sprintf("m%d", m))
			}
			for range maxDropped + 5 {
				l.Dropped = append(l.Dropped, Missing{"m", strings.Repeat("x", maxReason+5)})
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if l := s.Get("python", "/s0.py"); l.Torch {
		t.Error("the oldest is not forgotten")
	}
	l := s.Get("python", fmt.Sprintf("/s%d.py", maxScripts+9))
	if !l.Torch || len(l.Modules) != maxModules || len(l.Dropped) != maxDropped || len(l.Dropped[0].Reason) != maxReason {
		t.Errorf("the newest: %v %d %d", l.Torch, len(l.Modules), len(l.Dropped))
	}
	if l := s.Get("python3", "/s70.py"); l.Torch {
		t.Error("one interpreter's modules are another's")
	}
	for _, text := range []string{"", "{", `{"version":2,"scripts":[{"torch":true}]}`, `{"version":1,"scripts":[null]}`, "[]"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.Update("p", "/a.py", 1, func(l *Learned) { l.Worked = true }); err != nil || !s.Get("p", "/a.py").Worked {
			t.Errorf("after %q: %v", text, err)
		}
	}
}

func TestReadModules(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m")
	if err := os.WriteFile(path, []byte(`["numpy","a.b_c.D1","../x","a b","__main__","x;y","","1a"]`), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := ReadModules(path)
	if err != nil || !slices.Equal(got, []string{"numpy", "a.b_c.D1"}) {
		t.Errorf("%q %v", got, err)
	}
	if _, err := ReadModules(path + "none"); err == nil {
		t.Error("a file that is not there was read")
	}
}

func TestMentions(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]bool{"import torch\n": true, "from torch.nn import *": true, "import torchless": false, "": false, "import lightning as L": true} {
		if err := os.WriteFile(filepath.Join(dir, "s.py"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if Mentions("s.py", dir) != want {
			t.Errorf("%q", text)
		}
	}
}
