package dashboard

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// link is a name and the page about it, below /ui/; without a page it is only a name.
type link struct{ Text, Page string }

// reasonView is why something waits, with links to what is in its way: where its sentence
// names that, within the sentence.
type reasonView struct {
	*api.Reason
	Said []link // the sentence
	By   []link // what it does not name
}

// linker knows which names have pages; it asks for a job once for each page that is made.
type linker struct {
	p      *Page
	r      *http.Request
	queues map[string]bool
	jobs   map[string]bool
}

func newLinker(p *Page, r *http.Request, queues []api.QueueStatus) *linker {
	l := &linker{p: p, r: r, queues: map[string]bool{}, jobs: map[string]bool{}}
	for _, q := range queues {
		l.queues[q.Name] = true
	}
	return l
}

func (l *linker) job(id string) bool {
	known, asked := l.jobs[id]
	if !asked {
		job, err := l.p.r.Job(l.r.Context(), id)
		known = err == nil && job.ID == id // and no prefix of another one
		l.jobs[id] = known
	}
	return known
}

func (l *linker) view(reason *api.Reason) *reasonView {
	if reason == nil {
		return nil
	}
	v := &reasonView{Reason: reason}
	pages := map[string]string{}
	for _, b := range reason.Blockers {
		_, id, typed := strings.Cut(b, "/")
		if !typed {
			id = b
		}
		page := l.page(b)
		if position(reason.Text, id) < 0 {
			v.By = append(v.By, link{b, page})
		} else if page != "" {
			pages[id] = page
		}
	}
	v.Said = linked(reason.Text, pages)
	return v
}

// page is that of a blocker; "": there is none.
func (l *linker) page(blocker string) string {
	kind, id, typed := strings.Cut(blocker, "/")
	if !typed {
		kind, id = "", blocker
	}
	switch {
	case id == "" || strings.Contains(id, "/"):
	case (kind == "" || kind == "job") && l.job(id):
		return "jobs/" + url.PathEscape(id)
	case (kind == "" || kind == "queue" || kind == "tenant") && l.queues[id]:
		return "queue?in=" + url.QueryEscape(id)
	}
	return ""
}

// linked cuts a sentence at the names that have pages.
func linked(text string, pages map[string]string) []link {
	var out []link
	for text != "" {
		first, name := len(text), ""
		for id := range pages {
			if i := position(text, id); i >= 0 && (i < first || i == first && len(id) > len(name)) {
				first, name = i, id
			}
		}
		if first > 0 {
			out = append(out, link{Text: text[:first]})
		}
		if name == "" {
			break
		}
		out = append(out, link{name, pages[name]})
		text = text[first+len(name):]
	}
	return out
}

// position finds a name that stands for itself, and is no part of a longer one; -1: nowhere.
func position(text, name string) int {
	if name == "" {
		return -1
	}
	for at := 0; ; {
		i := strings.Index(text[at:], name)
		if i < 0 {
			return -1
		}
		i += at
		end := i + len(name)
		if !(i > 0 && inName(text[i-1])) && !(end < len(text) && inName(text[end])) {
			return i
		}
		at = end
	}
}

func inName(c byte) bool {
	return c == '-' || c == '_' || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z' || c >= 0x80
}
