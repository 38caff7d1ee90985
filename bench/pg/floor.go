package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"time"
)

// entry is about as large as what a head logs of a small group.
const entry = 512

// bare is what n cycles of two durable entries take with nothing around them.
type bare struct {
	Create  []float64 `json:"create"` // milliseconds of the first entry of each cycle
	Seconds float64   `json:"seconds"`
}

// floor appends to a file that has its size already, as a log does, and syncs each entry.
func floor(folder string, n int) (out bare, err error) {
	f, err := os.OpenFile(filepath.Join(folder, "floor"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(make([]byte, 2*n*entry)); err != nil {
		return out, err
	}
	if err := f.Sync(); err != nil {
		return out, err
	}
	data := bytes.Repeat([]byte{'x'}, entry)
	begin := time.Now()
	for i := range 2 * n {
		start := time.Now()
		if _, err := f.WriteAt(data, int64(i*entry)); err != nil {
			return out, err
		}
		if err := f.Sync(); err != nil {
			return out, err
		}
		if i%2 == 0 {
			out.Create = append(out.Create, ms(time.Since(start)))
		}
	}
	out.Seconds = time.Since(begin).Seconds()
	return out, nil
}
