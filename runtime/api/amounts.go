package api

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Amount is so much of one thing.
type Amount struct {
	Of string `json:"of"`
	N  int64  `json:"n"`
}

// Amounts are quantities by name, in order of names: "gpu" in thousandths of a device,
// "gpu:MODEL" for one class of devices, "cpu" in thousandths, "memory" in bytes, or the
// name of a Capacity. In JSON they are one object. A sorted list, because it is replicated
// and a map would be written in another order each time.
type Amounts []Amount

// mostAmounts bounds what one list may name.
const mostAmounts = 256

// Get is the quantity of a name, and whether there is one.
func (a Amounts) Get(of string) (int64, bool) {
	i, ok := slices.BinarySearchFunc(a, of, func(x Amount, of string) int { return strings.Compare(x.Of, of) })
	if !ok {
		return 0, false
	}
	return a[i].N, true
}

// With is a copy in which a name has another quantity.
func (a Amounts) With(of string, n int64) Amounts {
	i, ok := slices.BinarySearchFunc(a, of, func(x Amount, of string) int { return strings.Compare(x.Of, of) })
	out := slices.Clone(a)
	if ok {
		out[i].N = n
		return out
	}
	return slices.Insert(out, i, Amount{Of: of, N: n})
}

// MarshalJSON writes one object, names in order.
func (a Amounts) MarshalJSON() ([]byte, error) {
	var b strings.Builder
	b.WriteByte('{')
	for i, x := range a {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(x.Of)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%s:%d", name, x.N)
	}
	b.WriteByte('}')
	return []byte(b.String()), nil
}

// UnmarshalJSON reads one object of integers.
func (a *Amounts) UnmarshalJSON(data []byte) error {
	var m map[string]int64
	if err := json.Unmarshal(data, &m); err != nil {
		return err
	}
	if len(m) > mostAmounts {
		return fmt.Errorf("%d quantities are more than %d", len(m), mostAmounts)
	}
	*a = nil
	for of, n := range m {
		*a = append(*a, Amount{Of: of, N: n})
	}
	slices.SortFunc(*a, func(x, y Amount) int { return strings.Compare(x.Of, y.Of) })
	return nil
}
