package torchrun

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func environ(m map[string]string) func(string) (string, bool) {
	return func(k string) (string, bool) { v, ok := m[k]; return v, ok }
}

var none = environ(nil)

func TestSpellings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ words, dest, value string }{
		{"--nproc-per-node=2", "nproc_per_node", "2"},
		{"--nproc_per_node 2", "nproc_per_node", "2"},
		{"--nproc=2", "nproc_per_node", "2"},
		{"--nproc_per=2", "nproc_per_node", "2"},
		{"--max 3", "max_restarts", "3"},
		{"--max-restarts -1", "max_restarts", "-1"},
		{"-r3", "redirects", "3"},
		{"-r 3", "redirects", "3"},
		{"-r0:1,1:3", "redirects", "0:1,1:3"},
		{"--tee=3", "tee", "3"},
		{"-t 1", "tee", "1"},
		{"-m", "module", "true"},
		{"-mr3", "redirects", "3"},
		{"--mod", "module", "true"},
		{"--stand", "standalone", "true"},
		{"--run", "run_path", "true"},
		{"--rdzv-conf a=b,c=d", "rdzv_conf", "a=b,c=d"},
		{"--rdzv-endpoint=", "rdzv_endpoint", ""},
		{"--monitor-interval=5", "monitor_interval", "5"},
		{"--role=-x", "role", "-x"},
		{"--tee=1 --tee=2", "tee", "2"},
		{"--e null", "event_log_handler", "null"},
	} {
		l, err := Parse(append(strings.Fields(c.words), "train.py", "--lr", "1"), none, nil)
		if err != nil || l.text(c.dest) != c.value || !l.Typed(c.dest) || !slices.Equal(l.Rest, []string{"train.py", "--lr", "1"}) {
			t.Errorf("%s: %v, %+v", c.words, err, l)
		}
	}
}

func TestWhatFollowsTheScriptIsTheScripts(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]string{
		"train.py":                         "train.py",
		"train.py --r=16":                  "train.py --r=16",
		"train.py --nproc-per-node=9 -h":   "train.py --nproc-per-node=9 -h",
		"-- train.py -- x":                 "train.py -- x",
		"-- --odd-name.py x":               "--odd-name.py x",
		"- x":                              "- x",
		"-1 x":                             "-1 x",
		"--standalone -- train.py":         "train.py",
		"-q --standalone -q train.py -r 3": "train.py -r 3",
	} {
		own := func(name string) (bool, bool) { return false, name == "-q" }
		l, err := Parse(strings.Fields(words), none, own)
		if err != nil || strings.Join(l.Rest, " ") != want || l.text("nproc_per_node") != "1" {
			t.Errorf("%s: %v, %+v", words, err, l)
		}
	}
	for _, word := range []string{"-m ", "-q 1"} { // what is left of the word is no script
		if l, err := Parse([]string{word}, none, func(name string) (bool, bool) { return false, name == "-q" }); err == nil {
			t.Errorf("%q was taken: %q", word, l.Rest)
		}
	}
	if l, err := Parse([]string{"", "x"}, none, nil); err != nil || len(l.Rest) != 2 {
		t.Errorf("an empty word is a script: %v %v", l, err)
	}
}

// Options of the command itself pass through unread, with their values; so do unknown ones.
func TestOwnOptions(t *testing.T) {
	t.Parallel()
	own := func(name string) (bool, bool) {
		takes, ok := map[string]bool{"--ranks": true, "-n": true, "-q": false, "--max-restarts": true, "--run": true}[name]
		return takes, ok
	}
	for words, want := range map[string]string{
		"--ranks 4 -r3 x":           "--ranks 4",
		"--ranks=4 -r 3 x":          "--ranks=4",
		"-n4 -q x":                  "-n4 -q",
		"-n 4 x":                    "-n 4",
		"-qn4 x":                    "-q -n4",
		"-qr3 x":                    "-q",
		"--max-restarts -1 x":       "--max-restarts -1", // own comes first
		"--max_restarts 1 x":        "",
		"--run --standalone x":      "--run --standalone", // as pflag reads it
		"--unheard-of --nnodes 1 x": "--unheard-of",
		"--rank 4 x":                "--rank", // no prefix of torchrun's; then 4 is the script
	} {
		l, err := Parse(strings.Fields(words), none, own)
		if err != nil || strings.Join(l.Own, " ") != want {
			t.Errorf("%s: %v, %+v", words, err, l)
		}
	}
}

func TestBadLines(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]string{
		"--rdzv x train.py":              "ambiguous: --rdzv-backend, --rdzv-conf",
		"--max-restarts many train.py":   `"many" is not a whole number`,
		"--max-restarts= train.py":       `"" is not a whole number`,
		"--monitor-interval=fast x":      "not a number",
		"--start-method=thread train.py": "none of spawn, fork",
		"--nnodes":                       "--nnodes expects a value",
		"--nnodes --standalone train.py": "--nnodes expects a value",
		"--nnodes -- train.py":           "--nnodes expects a value",
		"--standalone=1 train.py":        "takes no value",
		"-m= train.py":                   "takes no value",
		"-m5 train.py":                   "takes no value",
		"--numa-binding near train.py":   "none of node, socket, exclusive, core-complex",
		"--nnodes=0 x":                   "0 < MIN <= MAX",
		"--nnodes=2:1 x":                 "0 < MIN <= MAX",
		"--nnodes=1:1:1 x":               "neither N nor MIN:MAX",
		"--nnodes=one x":                 "neither N nor MIN:MAX",
		"--nproc-per-node=0 x":           "at least one rank",
		"--max-restarts=-1 x":            "--max-restarts=-1",
		"--shutdown-timeout=-1 x":        "--shutdown-timeout=-1",
		"--redirects=4 x":                `--redirects="4"`,
		"--tee=0:1, x":                   "--tee",
		"--local-ranks-filter=0,x x":     "--local-ranks-filter",
		"--no-python -m package":         "exclude each other",
		"--rdzv-conf=a x":                "has no value",
		"--rdzv-conf==a x":               "KEY=VALUE",
		"--node-rank=-1 x":               "--node-rank",
		"--master-port=70000 x":          "--master-port",
	} {
		l, err := Parse(strings.Fields(words), none, nil)
		if err == nil {
			_, err = l.Settings(none)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", words, err, want)
		}
	}
	for env, value := range map[string]string{"PET_MAX_RESTARTS": "", "PET_STANDALONE": "yes", "PET_NO_PYTHON": ""} {
		if _, err := Parse([]string{"x"}, environ(map[string]string{env: value}), nil); err == nil || !strings.Contains(err.Error(), env) {
			t.Errorf("%s=%q: %v", env, value, err)
		}
	}
}

func TestEnvironmentIsTheDefault(t *testing.T) {
	t.Parallel()
	env := environ(map[string]string{
		"PET_NPROC_PER_NODE": "4", "PET_MAX_RESTARTS": "3", "PET_STANDALONE": "0", "PET_MODULE": "-1", "PET_RDZV_ID": "", "PET_LOGS_SPECS": "x",
	})
	l, err := Parse([]string{"--max-restarts=5", "--standalone", "m"}, env, nil)
	if err != nil {
		t.Fatal(err)
	}
	for dest, want := range map[string]string{"nproc_per_node": "4", "max_restarts": "5", "standalone": "true", "module": "true", "rdzv_id": "", "logs_specs": ""} {
		if got := l.text(dest); got != want {
			t.Errorf("%s is %q, want %q", dest, got, want)
		}
	}
	if l.Typed("nproc_per_node") || !l.Given("nproc_per_node") || l.Given("tee") || !l.Given("rdzv_id") {
		t.Errorf("%v", l.from)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	l, err := Parse(strings.Fields("--nnodes=2:4 --standalone --rdzv-id=7 --rdzv-conf=a=1,b=x=y --local-ranks-filter=0,12 --duplicate-stdout-filters a,,b,c, -t 11:2 x"), none, nil)
	if err != nil {
		t.Fatal(err)
	}
	env := environ(map[string]string{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "$rank>"})
	s, err := l.Settings(env)
	if err != nil {
		t.Fatal(err)
	}
	if s.Meeting.MaxNodes != 1 || s.RunID != "" || s.Meeting.Conf["b"] != "x=y" || !slices.Equal(s.RanksFilter, []int64{0, 12}) ||
		!slices.Equal(s.OutFilters, []string{"a,b", "c"}) || s.Shutdown.Seconds() != 7 || s.Prefix != "$rank>" || Codes(s.Tee)[11] != 2 {
		t.Errorf("%+v", s)
	}
}

func TestCommand(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]string{
		"train.py --lr -- 0.1":        "py -u train.py --lr -- 0.1",
		"-m package.train x":          "py -u -m package.train x",
		"--no-python ./program x":     "./program x",
		"--run-path --no-python s x":  "py -u -c " + runPath + " s x",
		"train.py $local_rank $$HOME": "py -u train.py ${local_rank} $HOME",
		"train.py a${local_rank}b $x": "py -u train.py a${local_rank}b $x",
		"--no-python $p $local_rank":  "$p ${local_rank}", // the program's own name is no argument
		"train.py ${local_rank $5 $":  "py -u train.py ${local_rank $5 $",
	} {
		l, err := Parse(strings.Fields(words), none, nil)
		if err != nil {
			t.Fatal(err)
		}
		s, err := l.Settings(none)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(s.Command("py", l.Rest), " "); got != want {
			t.Errorf("%s: %s, want %s", words, got, want)
		}
	}
}

func TestLinePrefix(t *testing.T) {
	t.Parallel()
	for template, want := range map[string]string{
		"": "[trainer3]:", "${hostname}:$rank: ": "h:11: ", "$$${role_name}-$local_rank $nothing": "$trainer-3 $nothing",
	} {
		if got := LinePrefix(template, "trainer", "h", "11", "3"); got != want {
			t.Errorf("%q: %q, want %q", template, got, want)
		}
	}
}

// Whatever is typed: no panic, nothing behind the script is touched, and every word
// before it is torchrun's, own or complained of.
func TestAnyLine(t *testing.T) {
	t.Parallel()
	word := rapid.OneOf(
		rapid.SampledFrom(Spellings()), rapid.StringMatching(`--?[a-z_-]{0,8}(=[a-z0-9:,]{0,4})?`), rapid.StringMatching(`[a-z0-9 .$-]{0,6}`),
	)
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(word, 0, 8).Draw(t, "words")
		l, err := Parse(words, none, func(name string) (bool, bool) { return name == "-n", name == "-n" || name == "-q" })
		if err != nil {
			return
		}
		if n := len(words) - len(l.Rest); n < 0 || !slices.Equal(words[n:], l.Rest) {
			t.Fatalf("%q gave %q", words, l.Rest)
		}
		if s, err := l.Settings(none); err == nil && len(l.Rest) > 0 {
			s.Command("py", l.Rest)
		}
	})
}

// Every option says what becomes of it, and completion knows it.
func TestEveryOptionIsExplained(t *testing.T) {
	t.Parallel()
	l, err := Parse(nil, none, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range []bool{false, true} {
		for _, e := range l.Explain(run) {
			if e.Text == "" || !slices.Contains([]How{Honoured, Mapped, NoMeaning}, e.How) {
				t.Errorf("%s: %+v", e.Flag, e)
			}
			for _, shell := range []string{"bash", "zsh", "tcsh"} {
				if !strings.Contains(Completion(shell, "x"), strings.TrimPrefix(e.Flag, "--")) {
					t.Errorf("%s is not completed in %s", e.Flag, shell)
				}
			}
			if !strings.Contains(Usage(), e.Flag) {
				t.Errorf("%s is not in the usage", e.Flag)
			}
		}
	}
	l, _ = Parse([]string{"--monitor-interval", "3", "x"}, environ(map[string]string{"PET_START_METHOD": "fork"}), nil)
	notes := strings.Join(l.Notes(false), "\n")
	if !strings.Contains(notes, "--monitor-interval has no effect") || !strings.Contains(notes, "PET_START_METHOD has no effect") || strings.Count(notes, "\n") != 1 {
		t.Errorf("%s", notes)
	}
}
