package agent

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Addresses that nobody has (RFC 5737, RFC 3849): a rule for them shows whether rules can
// be made here, and harms nothing.
const (
	nobody4 = "192.0.2.1"
	nobody6 = "2001:db8::1"
)

// cut blocks the way from this machine to the heads, once after is called: the answer has
// to leave before. That it can be done is proved first. A process of its own takes the
// block away again, so that it does not outlast an agent that dies.
func (a *Agent) cut(d time.Duration) (did string, after func(), err error) {
	rules, proofs, err := blocks(a.Heads)
	if err != nil {
		return "", nil, err
	}
	ip, err := exec.LookPath("ip")
	if err != nil {
		return "", nil, errors.New("the program ip (iproute2) is not there")
	}
	c := exec.Command("/bin/sh", "-c", cutScript(ip, rules, proofs, d))
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var said strings.Builder
	c.Stderr = &said
	order, err := c.StdinPipe()
	if err != nil {
		return "", nil, fmt.Errorf("start the cut: %w", err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return "", nil, fmt.Errorf("start the cut: %w", err)
	}
	if err := c.Start(); err != nil {
		return "", nil, fmt.Errorf("start the cut: %w", err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(line) != "ready" {
		_ = c.Wait()
		return "", nil, fmt.Errorf("block the way to the head: %s (this needs root)", strings.TrimSpace(said.String()))
	}
	go func() { _ = c.Wait() }()
	return fmt.Sprintf("no way from this node to %s for %s", strings.Join(a.Heads, ", "), d), func() {
		if _, err := io.WriteString(order, "cut\n"); err != nil {
			a.Logger.Warn("the way to the head was not blocked", "err", err)
		}
		_ = order.Close() // its only line is out, or could not be sent
	}, nil
}

// blocks are the rules that take away the way to each head, and one of each address family
// that takes away nothing.
func blocks(heads []string) (rules, proofs []string, err error) {
	if len(heads) == 0 {
		return nil, nil, errors.New("the agent here is not joined to its head by a network")
	}
	seen := map[string]bool{}
	for _, h := range heads {
		host, port, err := net.SplitHostPort(h)
		if err != nil {
			return nil, nil, fmt.Errorf("head address %q: %w", h, err)
		}
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return nil, nil, fmt.Errorf("head address %q has no port", h)
		}
		ips, err := net.LookupIP(host)
		if err != nil {
			return nil, nil, fmt.Errorf("head address %q: %w", h, err)
		}
		for _, to := range ips {
			if to.IsLoopback() {
				return nil, nil, fmt.Errorf("the head at %s is on this machine: there is no network to cut", h)
			}
			rules = append(rules, fmt.Sprintf("to %s ipproto tcp dport %s blackhole", to, port))
			nobody := nobody6
			if to.To4() != nil {
				nobody = nobody4
			}
			if !seen[nobody] {
				seen[nobody] = true
				proofs = append(proofs, fmt.Sprintf("to %s ipproto tcp dport %s blackhole", nobody, port))
			}
		}
	}
	return rules, proofs, nil
}

// cutScript proves, says so, waits for the order and blocks for a while. However it ends,
// the rules that it has made go; without an order, when the agent has died, it makes none.
func cutScript(ip string, rules, proofs []string, d time.Duration) string {
	var s strings.Builder
	for _, p := range proofs {
		fmt.Fprintf(&s, "%s rule add pref 1 %s || exit 1\n%s rule del pref 1 %s\n", ip, p, ip, p)
	}
	s.WriteString("echo ready\nread -r order || exit 0\n[ \"$order\" = cut ] || exit 0\nundo() {\n")
	for _, r := range rules {
		fmt.Fprintf(&s, "%s rule del pref 1 %s 2>/dev/null\n", ip, r)
	}
	s.WriteString("}\ntrap undo EXIT\ntrap 'exit 1' HUP INT TERM\n")
	for _, r := range rules {
		fmt.Fprintf(&s, "%s rule add pref 1 %s || exit 1\n", ip, r)
	}
	fmt.Fprintf(&s, "sleep %.1f\n", d.Seconds())
	return s.String()
}
