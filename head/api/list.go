package api

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// Bounds of a page of a list.
const (
	defaultLimit = 100
	maxLimit     = 1000
)

// PageParams are the parameters of every list.
type PageParams struct {
	Limit  int64  `query:"limit" minimum:"1" maximum:"1000" doc:"Rows in one answer; 100 if absent."`
	Cursor string `query:"cursor" maxLength:"1024" doc:"nextCursor of the answer before."`
}

type listOutput[T any] struct {
	Index uint64 `header:"X-Troupe-Index"`
	Body  api.List[T]
}

// cursor is where the next page begins: after the row with this key, whether or not
// that row is still there.
type cursor struct {
	Last  string `json:"k"`
	Index uint64 `json:"i"` // of the state that the first page showed
}

// page cuts one page out of rows, in the order of key, or its reverse. Rows that came
// or went in between move no other row to another page.
func page[T any](rows []T, index uint64, in PageParams, key func(T) string, reverse bool) (*listOutput[T], error) {
	order := func(a, b string) int {
		if reverse {
			a, b = b, a
		}
		return strings.Compare(a, b)
	}
	rows = slices.Clone(rows) // what the backend returns may be shared
	slices.SortStableFunc(rows, func(a, b T) int { return order(key(a), key(b)) })
	if in.Cursor != "" {
		c, err := parseCursor(in.Cursor)
		if err != nil {
			return nil, err
		}
		at, _ := slices.BinarySearchFunc(rows, c.Last, func(row T, last string) int {
			if n := order(key(row), last); n != 0 {
				return n
			}
			return -1 // an equal row was shown already
		})
		rows = rows[at:]
	}
	limit := in.Limit
	if limit == 0 {
		limit = defaultLimit
	}
	out := &listOutput[T]{Index: index, Body: api.List[T]{Items: rows, Index: index}}
	if int64(len(rows)) > limit {
		out.Body.Items = rows[:limit]
		out.Body.Remaining = int64(len(rows)) - limit
		raw, err := json.Marshal(cursor{Last: key(rows[limit-1]), Index: index})
		if err != nil {
			return nil, err
		}
		out.Body.Cursor = base64.RawURLEncoding.EncodeToString(raw)
	}
	if out.Body.Items == nil {
		out.Body.Items = []T{}
	}
	return out, nil
}

func parseCursor(text string) (cursor, error) {
	var c cursor
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil || c.Last == "" {
		return c, parameter("cursor", "is none that this head gave out; begin again without it")
	}
	return c, nil
}
