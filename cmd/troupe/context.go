package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"

	"github.com/troupe-runtime/troupe/runtime/api"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

// cluster and config are the SDK's: one file, one way to read it.
type (
	cluster = troupe.Context
	config  = troupe.Config
)

// knownCluster is a context as `context list` shows it.
type knownCluster struct {
	cluster
	Current bool `json:"current"`
}

func writeConfig(c config) error {
	path, err := troupe.ConfigPath()
	if err != nil {
		return err
	}
	data, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode the configuration: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make the configuration folder: %w", err)
	}
	tmp := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// addContext makes a cluster known and current.
func addContext(x cluster) error {
	c, err := troupe.ReadConfig()
	if err != nil {
		return err
	}
	c.Contexts = slices.DeleteFunc(c.Contexts, func(o cluster) bool { return o.Name == x.Name })
	c.Contexts = append(c.Contexts, x)
	c.Current = x.Name
	return writeConfig(c)
}

// dropContext forgets a cluster, if it is still the one at that state folder.
func dropContext(state string) error {
	c, err := troupe.ReadConfig()
	if err != nil {
		return err
	}
	n := len(c.Contexts)
	c.Contexts = slices.DeleteFunc(c.Contexts, func(o cluster) bool {
		if o.State == state && c.Current == o.Name {
			c.Current = ""
		}
		return o.State == state
	})
	if len(c.Contexts) == n {
		return nil
	}
	return writeConfig(c)
}

// api returns the client of the cluster that flags, environment and file lead to; flags
// win over the environment, that over the file.
func (a *app) api() (*troupe.Client, error) {
	if a.client != nil {
		return a.client, nil
	}
	f, err := troupe.Find(a.addr)
	if err != nil {
		return nil, err
	}
	opts, err := f.Options()
	if err != nil {
		return nil, err
	}
	c, err := troupe.New(f.Address, f.Token, opts...)
	if err != nil {
		return nil, usage("%v", err)
	}
	c.Agent = "troupe/" + version
	a.client = c
	return c, nil
}

func (a *app) contextCommand() *cobra.Command {
	c := &cobra.Command{Use: "context", Short: "Clusters known here: list, use", Example: "  troupe context list\n  troupe context use local"}
	c.AddCommand(&cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List them", Args: cobra.NoArgs, Example: "  troupe context list -o json",
		RunE: func(*cobra.Command, []string) error {
			cfg, err := troupe.ReadConfig()
			if err != nil {
				return err
			}
			l := api.List[knownCluster]{Items: []knownCluster{}}
			for _, x := range cfg.Contexts {
				l.Items = append(l.Items, knownCluster{x, x.Name == cfg.Current})
			}
			show(a, l, func(x knownCluster) string { return x.Name }, func(xs []knownCluster) table {
				t := table{head: []string{"CURRENT", "NAME", "ADDRESS", "STATE"}}
				for _, x := range xs {
					mark := ""
					if x.Current {
						mark = "*"
					}
					t.add(mark, x.Name, x.Address, x.State)
				}
				return t
			})
			return nil
		},
	}, &cobra.Command{
		Use: "use NAME", Short: "Make one current", Args: cobra.ExactArgs(1), Example: "  troupe context use local",
		RunE: func(_ *cobra.Command, args []string) error {
			cfg, err := troupe.ReadConfig()
			if err != nil {
				return err
			}
			var names []string
			for _, x := range cfg.Contexts {
				names = append(names, x.Name)
			}
			if !slices.Contains(names, args[0]) {
				return missing("troupe context list", "no context %q%s", args[0], didYouMean(args[0], names))
			}
			cfg.Current = args[0]
			if err := writeConfig(cfg); err != nil {
				return err
			}
			x := knownCluster{cfg.Contexts[slices.Index(names, args[0])], true}
			a.one(x, x.Name, func() { _, _ = fmt.Fprintf(a.out, "%s  %s\n", x.Name, x.Address) })
			return nil
		},
	})
	return c
}
