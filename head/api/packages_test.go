package api

import (
	"net/http"
	"strings"
	"testing"
)

func TestPackages(t *testing.T) {
	s := serverFor(t, populated(), nil)
	other := strings.Repeat("f", 64)
	media := []string{"Content-Type", "application/octet-stream"}
	for _, c := range []struct {
		name, method, hash, body string
		headers                  []string
		status                   int
		text                     string
	}{
		{"there", "GET", packageHash, "", nil, 200, `"size":7`},
		{"not there", "GET", other, "", nil, 404, "no package " + other},
		{"no hash", "GET", "abc", "", nil, 422, "path/hash"},
		{"upper case", "GET", strings.ToUpper(other), "", nil, 422, "path/hash"},
		{"JSON", "PUT", other, "{}", nil, 415, "application/json"},
		{"put", "PUT", other, "archive", media, 200, `"hash":"` + other + `"`},
		{"there now", "GET", other, "", nil, 200, `"size":7`},
		{"other method", "POST", other, "archive", media, 405, "use GET or PUT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := ask(s.guard, c.method, "/api/v1/packages/"+c.hash, adminToken, c.body, c.headers...)
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.text) {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
	w := ask(s.guard, http.MethodPost, "/api/v1/jobs", adminToken, `{"command":["a"],"package":"../x"}`)
	if w.Code != 422 || !strings.Contains(w.Body.String(), "/package") {
		t.Errorf("a job with a package that is no hash: %d %s", w.Code, w.Body)
	}
}
