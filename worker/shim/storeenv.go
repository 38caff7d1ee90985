package shim

import (
	"os"
	"strings"
)

// ofStores are variables of the agent's environment that reach the saver, and no rank:
// what the standard chain of credentials reads, and how a network is left.
func ofStores(name string) bool {
	switch name {
	case "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "HOME":
		return true
	}
	return strings.HasPrefix(name, "AWS_")
}

// storeEnv is that part of this process's environment.
func storeEnv() []string {
	var out []string
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); ofStores(name) {
			out = append(out, e)
		}
	}
	return out
}
