package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

// maxErrorFile bounds one error file; torch's are a few kilobytes.
const maxErrorFile = 256 << 10

// errorFileWait bounds the reading of all error files at the end of a run.
const errorFileWait = 30 * time.Second

const (
	errorFileVariable = "TORCHELASTIC_ERROR_FILE"
	errorFileName     = "error.json"
)

// takeError copies what a rank of an ended attempt said about its failure into the log
// folder, where no later attempt touches it.
func (c *console) takeError(ctx context.Context, cl *troupe.Client, job string, at api.Attempt, r api.Rank) {
	if c.runDir == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, errorFileWait)
	defer cancel()
	data, err := readErrorFile(ctx, cl, job, r.Rank, at.Number)
	if p := troupe.AsProblem(err); p != nil && p.Status == 404 || err == nil && len(data) == 0 {
		return
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(c.rankDir(at, r), errorFileName), data, 0o640)
	}
	if err != nil {
		c.a.note("the error file of rank %d cannot be copied: %s", r.Rank, clean(c.a.problemOf(err).Detail))
	}
}

// keepErrors names the copies of the last attempt's error files, and hands the root
// cause's to whoever launched this launcher and looks for it.
func (a *app) keepErrors(ctx context.Context, cl *troupe.Client, j *api.Job, c *console) {
	if len(j.Attempts) == 0 {
		return
	}
	last := &j.Attempts[len(j.Attempts)-1]
	for i := range last.Ranks {
		r := &last.Ranks[i]
		if r.End == nil || r.End.ErrorFile == "" {
			continue
		}
		if own := os.Getenv(errorFileVariable); own != "" && last.Failure != nil && last.Failure.Rank == r.Rank {
			ctx, cancel := context.WithTimeout(ctx, errorFileWait)
			data, err := readErrorFile(ctx, cl, j.ID, r.Rank, last.Number)
			cancel()
			if err == nil {
				err = copyRoot(own, data, torchCode(r.End.Code, r.End.Signal))
			}
			if err != nil {
				a.errLine("the error file of rank %d is not copied to %s: %s", r.Rank, own, clean(a.problemOf(err).Detail))
			}
		}
		if c.runDir == "" {
			continue
		}
		if path := filepath.Join(c.rankDir(*last, *r), errorFileName); isFile(path) {
			r.End.ErrorFile = path
		}
	}
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

// readErrorFile reads a rank's error file through the head.
func readErrorFile(ctx context.Context, cl *troupe.Client, job string, rank, attempt int64) ([]byte, error) {
	var out []byte
	for {
		p, err := cl.ReadLog(ctx, job, rank, attempt, "error", int64(len(out)), 0)
		if err != nil {
			return nil, err
		}
		out = append(out, p.Data...)
		if len(out) > maxErrorFile {
			return nil, fmt.Errorf("it is larger than %s", bytesText(maxErrorFile))
		}
		if len(p.Data) == 0 || int64(len(out)) >= p.Size {
			return out, nil
		}
	}
}

// copyRoot writes the root cause's error file to the launcher's own, with the exit code
// in it where its form has a place for one, as torch's @record does. What is no JSON is
// left out, since whoever reads the copy parses it.
func copyRoot(path string, data []byte, code int64) error {
	var outer map[string]json.RawMessage
	if err := json.Unmarshal(data, &outer); err != nil || outer == nil {
		return errors.New("it is not a JSON object")
	}
	var inner map[string]json.RawMessage
	if json.Unmarshal(outer["message"], &inner) == nil && inner != nil && code != 0 {
		inner["errorCode"], _ = json.Marshal(code)
		outer["message"], _ = json.Marshal(inner)
	}
	out, err := json.Marshal(outer)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.WriteFile(path, out, 0o644)
}
