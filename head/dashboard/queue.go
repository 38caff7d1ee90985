package dashboard

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// maxWaiting is how many of what waits one page shows; the others are on the next ones.
const maxWaiting = 100

// orderRow is one request that waits, with links to what is in its way.
type orderRow struct {
	api.OrderRow
	Job     string // its page, below /ui/
	Need    string
	Expect  string
	Blocked *reasonView
}

// queueRow is one tenant or queue; GPUs are what most quotas are about, and the others
// stand in More.
type queueRow struct {
	api.QueueStatus
	Kind, State, Why       string
	Depth                  int
	Used, Guaranteed       string
	Limit, Borrowed, Lends string
	Bar                    quotaBar
	More                   []string
	Decayed, Share         string
	Waits                  string
}

// quotaBar draws what is used of a limit and where what is guaranteed ends, in percent.
type quotaBar struct {
	Part, Mark int64
	Marked     bool
	Text       string // "" without a quota
}

// reservationRow is a reservation and whether its time has come.
type reservationRow struct {
	api.ReservationStatus
	State string
}

// capacityRow is a capacity, or one domain of it.
type capacityRow struct {
	Name, Where       string
	Used, Total, Over string
	Width             int64
}

type queueBody struct {
	In       string // the tenant or queue that is looked at; "" for all
	Waiting  panel[orderRow]
	Total    int
	From     int // of the first row, from 1
	To       int
	Earlier  string // addresses of the pages before and after
	Later    string
	Parked   int64 // what is held or suspended, and so not in the order
	Queues   panel[queueRow]
	Declared *api.Declared
	NoData   string // why what is declared is not known
	Reserved []reservationRow
	Pools    []capacityRow
}

func (p *Page) queue(r *http.Request) (any, error) {
	ctx, query := r.Context(), r.URL.Query()
	body := queueBody{In: query.Get("in")}
	queues, _, qerr := p.r.Queues(ctx)
	links := newLinker(p, r, queues)
	rows, _, err := p.r.QueueOrder(ctx, body.In)
	if err != nil && body.In != "" {
		return nil, err // of a name that there is not, mostly
	}
	body.Total = len(rows)
	from, _ := strconv.Atoi(query.Get("from")) // nonsense is the first page
	from = max(0, min(from-1, len(rows)-1))
	from -= from % maxWaiting
	rows = rows[min(from, len(rows)):]
	rows = rows[:min(maxWaiting, len(rows))]
	body.From, body.To = from+1, from+len(rows)
	if from > 0 {
		body.Earlier = queueAddress(query, from-maxWaiting+1)
	}
	if body.To < body.Total {
		body.Later = queueAddress(query, body.To+1)
	}
	waiting := make([]orderRow, 0, len(rows))
	for _, o := range rows {
		row := orderRow{OrderRow: o, Need: cmp.Or(o.Need.Text(), "nothing"), Expect: span(o.Expect.D()), Blocked: links.view(o.Reason)}
		if links.job(o.Name) {
			row.Job = "jobs/" + o.Name
		}
		waiting = append(waiting, row)
	}
	body.Waiting = fill(p, r, waiting, err, maxWaiting)
	for _, q := range queues {
		if body.In == q.Name || body.In == "" && q.Parent == "" {
			body.Parked += q.Parked
		}
	}
	body.Queues = fill(p, r, queueTree(queues), qerr, maxRows)
	declared, err := p.r.Declared(ctx)
	if err != nil {
		body.NoData = asProblem(ctx, p.log, err).Detail
		return body, nil
	}
	body.Declared = &declared
	body.Reserved, body.Pools = reservationRows(declared.Reservations, p.now()), capacityRows(declared.Capacities)
	return body, nil
}

// queueAddress is this page from another row on; what else was chosen stays.
func queueAddress(query url.Values, from int) string {
	out := url.Values{}
	for _, name := range []string{"in", "refresh"} {
		if v := query.Get(name); v != "" {
			out.Set(name, v)
		}
	}
	if from > 1 {
		out.Set("from", strconv.Itoa(from))
	}
	return address("queue", out)
}

// queueTree lists tenants and queues below what they are below of; what is above nothing
// that is known stands at the top.
func queueTree(all []api.QueueStatus) []queueRow {
	below := map[string][]int{}
	known := map[string]bool{}
	for _, q := range all {
		known[q.Name] = true
	}
	for i, q := range all {
		parent := q.Parent
		if !known[parent] {
			parent = ""
		}
		below[parent] = append(below[parent], i)
	}
	var out []queueRow
	var walk func(parent string, depth int)
	walk = func(parent string, depth int) {
		siblings := below[parent]
		for _, i := range siblings {
			out = append(out, queueView(&all[i], all, siblings, depth))
			walk(all[i].Name, depth+1)
		}
	}
	walk("", 0)
	return out
}

func queueView(q *api.QueueStatus, all []api.QueueStatus, siblings []int, depth int) queueRow {
	row := queueRow{QueueStatus: *q, Kind: "queue", State: "open", Depth: min(depth, 6), Borrowed: "–", Lends: "–", Guaranteed: "–", Limit: "–"}
	if q.Tenant {
		row.Kind = "tenant"
	}
	if q.Paused != "" {
		row.State, row.Why = "paused", q.Paused
	} else if above := q.PausedAbove(all); above != nil {
		row.State, row.Why = "paused", "with "+above.Name+": "+above.Paused
	}
	used, _ := q.Charged.Get("gpu")
	row.Used = api.AmountText("gpu", used)
	guaranteed, isGuaranteed := q.Guaranteed.Get("gpu")
	limit, isLimited := q.Limit.Get("gpu")
	if isGuaranteed {
		borrowed, _ := q.Borrowed("gpu")
		lends, _ := q.Lendable("gpu")
		row.Guaranteed, row.Borrowed, row.Lends = api.AmountText("gpu", guaranteed), api.AmountText("gpu", borrowed), api.AmountText("gpu", lends)
	}
	if isLimited {
		row.Limit = api.AmountText("gpu", limit)
	}
	row.Bar = quotaBarOf(used, guaranteed, limit, isGuaranteed, isLimited)
	row.More = otherQuotas(q)
	row.Decayed = strconv.FormatFloat(float64(q.Used)/3_600_000, 'f', 1, 64)
	row.Share = shareText(q, all, siblings)
	if q.Pending > 0 {
		row.Waits = span(q.Waits.D())
	}
	return row
}

func quotaBarOf(used, guaranteed, limit int64, isGuaranteed, isLimited bool) quotaBar {
	if !isGuaranteed && !isLimited {
		return quotaBar{}
	}
	whole := max(used, guaranteed, limit, 1)
	b := quotaBar{Part: percentOf(used, whole), Mark: percentOf(guaranteed, whole), Marked: isGuaranteed && guaranteed < whole}
	b.Text = api.AmountText("gpu", used) + " GPUs in use"
	if isGuaranteed {
		b.Text += ", " + api.AmountText("gpu", guaranteed) + " guaranteed"
	}
	if isLimited {
		b.Text += ", limit " + api.AmountText("gpu", limit)
	}
	return b
}

// percentOf does not overflow for whatever quantities somebody wrote into a quota.
func percentOf(n, whole int64) int64 {
	return max(0, min(100, int64(float64(n)/float64(whole)*100)))
}

// otherQuotas are the quotas of everything but GPUs.
func otherQuotas(q *api.QueueStatus) []string {
	var names api.Amounts
	for _, list := range []api.Amounts{q.Guaranteed, q.Limit} {
		for _, x := range list {
			if x.Of != "gpu" {
				names = names.With(x.Of, 0)
			}
		}
	}
	var out []string
	for _, x := range names {
		used, _ := q.Charged.Get(x.Of)
		text := x.Of + ": " + api.AmountText(x.Of, used) + " in use"
		if n, ok := q.Guaranteed.Get(x.Of); ok {
			text += ", " + api.AmountText(x.Of, n) + " guaranteed"
		}
		if n, ok := q.Limit.Get(x.Of); ok {
			text += ", limit " + api.AmountText(x.Of, n)
		}
		out = append(out, text)
	}
	return out
}

// shareText compares a node's part of past use with its part by weight, both among its
// siblings: who has less than its part comes first.
func shareText(q *api.QueueStatus, all []api.QueueStatus, siblings []int) string {
	weight := func(q *api.QueueStatus) float64 {
		if q.Weight == nil {
			return 1
		}
		return float64(*q.Weight)
	}
	var used, weights float64
	for _, i := range siblings {
		used += float64(all[i].Used)
		weights += weight(&all[i])
	}
	part := func(n, whole float64) string {
		if whole <= 0 {
			return "–"
		}
		return strconv.FormatFloat(100*n/whole, 'f', 0, 64) + " %"
	}
	return part(float64(q.Used), used) + " of use, " + part(weight(q), weights) + " by weight"
}

func reservationRows(list []api.ReservationStatus, now time.Time) []reservationRow {
	out := make([]reservationRow, 0, len(list))
	for _, r := range list {
		state := "active"
		switch {
		case !now.Before(r.End):
			state = "over"
		case now.Before(r.Start):
			state = "planned"
		}
		out = append(out, reservationRow{r, state})
	}
	slices.SortStableFunc(out, func(a, b reservationRow) int {
		return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// capacityRows has a row for each domain of a capacity that each has for itself.
func capacityRows(list []api.CapacityStatus) []capacityRow {
	var out []capacityRow
	for _, c := range list {
		row := func(where string, used int64) {
			text := func(n int64) string {
				if c.Unit != "" {
					return fmt.Sprintf("%d %s", n, c.Unit)
				}
				return strconv.FormatInt(n, 10)
			}
			out = append(out, capacityRow{
				Name: c.Name, Where: where, Used: text(used), Total: text(c.Total), Over: text(c.Overhead),
				Width: percentOf(used+c.Overhead, max(1, c.Total)),
			})
		}
		if c.Level == "" {
			row("the cluster", c.Used)
			continue
		}
		names := make([]string, 0, len(c.In))
		for name := range c.In {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			row(c.Level+" "+name, c.In[name])
		}
		if len(names) == 0 {
			row("each "+c.Level, 0)
		}
	}
	return out
}
