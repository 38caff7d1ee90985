package troupe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/troupe-runtime/troupe/runtime/trust"
)

// Context is one cluster that this user knows: where it is and what opens it.
type Context struct {
	Name      string `yaml:"name" json:"name"`
	Address   string `yaml:"address" json:"address"`
	TokenFile string `yaml:"tokenFile" json:"tokenFile"`
	State     string `yaml:"state,omitempty" json:"state,omitempty"` // folder of a cluster on this machine
	// CA is the digest of the cluster's root certificate, sha256:…, by which its heads are
	// known; empty for a cluster that is served without TLS, on loopback.
	CA string `yaml:"ca,omitempty" json:"ca,omitempty"`
}

// Config is the user's configuration, as the command line keeps it.
type Config struct {
	Current  string    `yaml:"current" json:"current"`
	Contexts []Context `yaml:"contexts" json:"contexts"`
}

// Errors of Connect.
var (
	// ErrNoCluster: neither the environment nor the configuration names a cluster.
	ErrNoCluster = errors.New("no cluster is known here")
	// ErrConfig: the configuration cannot be read, or leads nowhere.
	ErrConfig = errors.New("configuration")
)

// ConfigPath is where the configuration lives: $XDG_CONFIG_HOME/troupe/config.yaml, by
// default below ~/.config.
func ConfigPath() (string, error) {
	dir := os.Getenv("XDG_CONFIG_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("find the configuration folder: %w; set XDG_CONFIG_HOME", err)
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "troupe", "config.yaml"), nil
}

// ReadConfig reads the configuration; a file that is not there is an empty one.
func ReadConfig() (Config, error) {
	var c Config
	path, err := ConfigPath()
	if err != nil {
		return c, err
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("read %s: %w", path, err)
	}
	if err := yaml.Unmarshal(data, &c); err != nil {
		return c, fmt.Errorf("%w: %s: %w", ErrConfig, path, err)
	}
	return c, nil
}

// Locate says which cluster is meant and with which token. address comes first if it is
// not empty, then TROUPE_ADDRESS, then the context that TROUPE_CONTEXT names, then the
// current one; the token is TROUPE_TOKEN, else that of the context of that address.
func Locate(address string) (url, token string, err error) {
	f, err := Find(address)
	return f.Address, f.Token, err
}

// Found is a cluster, and what opens it.
type Found struct {
	Address string
	Token   string
	CA      string // as in Context; also from TROUPE_CA
}

// Options are those of New that the cluster asks for.
func (f Found) Options() ([]Option, error) {
	if f.CA == "" {
		return nil, nil
	}
	pin, err := trust.ParseDigest(f.CA)
	if err != nil {
		return nil, fmt.Errorf("%w: the cluster at %s: %w", ErrConfig, f.Address, err)
	}
	return []Option{WithPin(pin)}, nil
}

// Find is Locate, with the digest by which the cluster's heads are known.
func Find(address string) (Found, error) {
	if address == "" {
		address = os.Getenv("TROUPE_ADDRESS")
	}
	token, ca := os.Getenv("TROUPE_TOKEN"), os.Getenv("TROUPE_CA")
	if address != "" && token != "" && (ca != "" || !strings.HasPrefix(address, "https:")) {
		return Found{address, token, ca}, nil
	}
	c, err := ReadConfig()
	if err != nil {
		return Found{}, err
	}
	name := c.Current
	if n := os.Getenv("TROUPE_CONTEXT"); n != "" {
		name = n
	}
	for _, x := range c.Contexts {
		if address == "" && x.Name != name || address != "" && !sameHost(address, x.Address) {
			continue
		}
		if address == "" {
			address = x.Address
		}
		if token == "" {
			b, err := os.ReadFile(x.TokenFile)
			if err != nil {
				return Found{}, fmt.Errorf("%w: the token of context %s: %w", ErrConfig, x.Name, err)
			}
			token = strings.TrimSpace(string(b))
		}
		if ca == "" {
			ca = x.CA
		}
		if ca != "" && !strings.Contains(address, "://") {
			address = "https://" + address
		}
		break
	}
	if address == "" {
		return Found{}, ErrNoCluster
	}
	return Found{address, token, ca}, nil
}

func sameHost(a, b string) bool {
	u, err1 := ParseAddress(a)
	w, err2 := ParseAddress(b)
	return err1 == nil && err2 == nil && u.Host == w.Host
}

// Connect makes a client for the cluster that the command line would use here.
func Connect(opts ...Option) (*Client, error) {
	f, err := Find("")
	if err != nil {
		return nil, fmt.Errorf("troupe: %w", err)
	}
	own, err := f.Options()
	if err != nil {
		return nil, fmt.Errorf("troupe: %w", err)
	}
	return New(f.Address, f.Token, append(own, opts...)...)
}
