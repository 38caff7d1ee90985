package numa

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ParseList reads a list of CPUs or nodes as the kernel writes it, "0-2,4,6-7", and
// returns it ascending.
func ParseList(text string) ([]int, error) {
	var list []int
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		first, last, ranged := strings.Cut(part, "-")
		if !ranged {
			last = first
		}
		a, err1 := strconv.ParseUint(first, 10, 31)
		b, err2 := strconv.ParseUint(last, 10, 31)
		if err1 != nil || err2 != nil || b < a || b >= maxCPU {
			return nil, fmt.Errorf("%.40q is no list of numbers below %d, as 0-3,8", part, maxCPU)
		}
		for n := a; n <= b; n++ {
			list = append(list, int(n))
		}
		if len(list) > maxCPU {
			return nil, fmt.Errorf("more than %d numbers", maxCPU)
		}
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// FormatList writes a list as the kernel does; it is ascending and has nothing twice.
func FormatList(list []int) string {
	var parts []string
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		part := strconv.Itoa(list[i])
		if j > i {
			part += "-" + strconv.Itoa(list[j])
		}
		parts = append(parts, part)
		i = j + 1
	}
	return strings.Join(parts, ",")
}
