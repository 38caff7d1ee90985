package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

func TestWordsOfAReason(t *testing.T) {
	a := &app{out: &bytes.Buffer{}}
	at := time.Date(2031, 5, 4, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		r           api.Reason
		by, freedBy string
	}{
		{api.Reason{}, "", ""},
		{api.Reason{Blockers: []string{"x", "y"}, Frees: "the end of x"}, "x, y", "the end of x"},
		{api.Reason{Blockers: []string{"x"}, MoreBlockers: 3, Frees: "the end of x", When: at}, "x and 3 more", "the end of x, expected 2031-05-04T12:00:00Z"},
	} {
		if by, freed := inTheWay(&tc.r), a.freed(&tc.r); by != tc.by || freed != tc.freedBy {
			t.Errorf("%+v: %q, freed by %q", tc.r, by, freed)
		}
	}
}
