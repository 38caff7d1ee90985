package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/unit"
)

func resourcesText(r api.Resources) string {
	var parts []string
	if r.CPU > 0 {
		parts = append(parts, r.CPU.String()+" CPU")
	}
	if r.Memory > 0 {
		parts = append(parts, bytesText(int64(r.Memory)))
	}
	if r.GPUs > 0 {
		parts = append(parts, plural(r.GPUs, "GPU"))
	}
	if r.Share > 0 {
		parts = append(parts, fmt.Sprintf("%d/1000 GPU", r.Share))
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

// chargedText is whose quota a job is charged to, and who asked for it.
func chargedText(j api.Job) string {
	text := "tenant " + orDash(j.Tenant)
	if j.Spec.Queue != "" && j.Spec.Queue != j.Tenant {
		text += ", queue " + j.Spec.Queue
	}
	if j.User != "" {
		text += ", by " + j.User
	}
	return text
}

// jobGPUs is what its ranks ask for together, in parts of a device where they share.
func jobGPUs(j api.Job) string {
	return amountText("gpu", j.Spec.Ranks*(1000*j.Spec.Resources.GPUs+j.Spec.Resources.Share))
}

// resourceFlags are what one bundle or rank asks for.
type resourceFlags struct {
	cpus, memory string
	gpus, share  int64
}

func (r *resourceFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&r.cpus, "cpus", "", "`N`: CPUs of each, as 2 or 1500m")
	f.StringVar(&r.memory, "memory", "", "`size`: memory of each, as 4GiB")
	f.Int64Var(&r.gpus, "gpus", 0, "`N`: whole GPUs of each")
	f.Int64Var(&r.share, "gpu-share", 0, "`N`: thousandths of one GPU of each, instead of whole ones")
}

func (r *resourceFlags) resources() (api.Resources, error) {
	out := api.Resources{GPUs: r.gpus, Share: r.share}
	var err error
	if r.cpus != "" {
		if out.CPU, err = unit.ParseMilliCPU(r.cpus); err != nil {
			return out, usage("--cpus: %v", err)
		}
	}
	if r.memory != "" {
		if out.Memory, err = unit.ParseBytes(r.memory); err != nil {
			return out, usage("--memory: %v", err)
		}
	}
	if r.gpus < 0 || r.share < 0 {
		return out, usage("--gpus and --gpu-share are not negative")
	}
	return out, nil
}

func parseLabels(words []string) (map[string]string, error) {
	if len(words) == 0 {
		return nil, nil
	}
	out := map[string]string{}
	for _, w := range words {
		k, v, ok := strings.Cut(w, "=")
		if !ok || k == "" {
			return nil, usage("label %q: want NAME=VALUE", w)
		}
		out[k] = v
	}
	return out, nil
}

func parseStrategy(s string) (api.Strategy, error) {
	all := []string{string(api.Pack), string(api.Spread), string(api.StrictPack), string(api.StrictSpread)}
	up := strings.ToUpper(strings.ReplaceAll(s, "-", "_"))
	for _, x := range all {
		if x == up {
			return api.Strategy(x), nil
		}
	}
	return "", usage("--strategy %q: %s%s", s, strings.Join(all, ", "), didYouMean(up, all))
}

func labelsText(m map[string]string) string {
	var parts []string
	for _, k := range sortedKeys(m) {
		parts = append(parts, k+"="+m[k])
	}
	return strings.Join(parts, ",")
}
