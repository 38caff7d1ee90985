package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

// parseAmounts reads gpu=8,cpu=64,memory=1TiB, gpu:MODEL=4 and capacities by their names.
func parseAmounts(flag string, list []string) (api.Amounts, error) {
	var out api.Amounts
	for _, word := range list {
		of, text, ok := strings.Cut(word, "=")
		if !ok || of == "" || text == "" {
			return nil, usage("--%s %q: want NAME=N, as gpu=8, gpu:H200=4, cpu=64, memory=1TiB, or a capacity", flag, word)
		}
		if _, twice := out.Get(of); twice {
			return nil, usage("--%s: %s is there twice", flag, of)
		}
		n, err := parseAmount(of, text)
		if err != nil {
			return nil, usage("--%s %s: %v", flag, word, err)
		}
		out = out.With(of, n)
	}
	return out, nil
}

func parseAmount(of, text string) (int64, error) {
	switch {
	case of == "cpu":
		n, err := unit.ParseMilliCPU(text)
		return int64(n), err
	case of == "memory":
		n, err := unit.ParseBytes(text)
		return int64(n), err
	case of == "gpu" || strings.HasPrefix(of, "gpu:"):
		whole, part, _ := strings.Cut(text, ".")
		n, err := strconv.ParseInt(whole, 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/1000-1 || len(part) > 3 || strings.HasSuffix(text, ".") {
			return 0, fmt.Errorf("%q is no number of GPUs, as 8 or 0.5", text)
		}
		part += strings.Repeat("0", 3-len(part))
		m, err := strconv.ParseUint(part, 10, 10)
		if err != nil {
			return 0, fmt.Errorf("%q is no number of GPUs, as 8 or 0.5", text)
		}
		return n*1000 + int64(m), nil
	}
	if b, err := unit.ParseBytes(text); err == nil {
		return int64(b), nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is no whole number, nor a size as 350MiB", text)
	}
	return n, nil
}

func amountText(of string, n int64) string { return api.AmountText(of, n) }

func amountsText(list api.Amounts) string { return orDash(list.Text()) }
