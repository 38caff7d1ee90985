package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/bus/link"
	"github.com/troupe-runtime/troupe/runtime/wire"
	troupe "github.com/troupe-runtime/troupe/sdk"
	"github.com/troupe-runtime/troupe/worker/agent"
)

// workerLink is how a worker reaches its head: on one machine with a token and without
// TLS, else with a certificate, for which it joins.
type workerLink struct {
	a                               *app
	head, tokenFile, keyFile, local string

	id, busURL string
	password   string // with a token
	member     *membership
}

// open makes the node's identity, and joins if there is none yet.
func (l *workerLink) open(ctx context.Context, c *cobra.Command, dir string) (id string, err error) {
	if l.tokenFile != "" {
		token, err := os.ReadFile(l.tokenFile)
		if err != nil {
			return "", fmt.Errorf("read the node token: %w", err)
		}
		l.password = strings.TrimSpace(string(token))
		if l.busURL, err = busAddress(l.head); err != nil {
			return "", err
		}
		l.id, err = agent.NodeID(dir)
		return l.id, err
	}
	if l.local != "" {
		if _, err := netip.ParseAddr(l.local); err != nil {
			return "", usage("--local-addr %q: an IP address of this host", l.local)
		}
	}
	if !c.Flags().Changed("head") || strings.HasPrefix(l.head, "nats:") {
		return "", fail(api.ExitUsage, "TRP-C064", c.CommandPath()+" --head HOST:7600, or --token-file /var/lib/troupe/node.token",
			"%s wants --head with the API address of a head to join, or --token-file for a head on this machine", c.CommandPath())
	}
	address, err := joinAddress(l.head)
	if err != nil {
		return "", err
	}
	m, known, err := openMembership(dir, address)
	if err != nil {
		return "", err
	}
	l.member, l.id = m, m.node
	if !known {
		if err := l.join(ctx, address); err != nil {
			return "", err
		}
	}
	l.busURL = m.bus
	return l.id, nil
}

// join asks until a head answers.
func (l *workerLink) join(ctx context.Context, address string) error {
	key, err := joinKey(l.keyFile)
	if err != nil {
		return err
	}
	for told := false; ; {
		err := l.member.ask(ctx, address, l.local, key, nil)
		if err == nil {
			return nil
		}
		if p := joinProblem(address, err); p != nil {
			return p
		}
		if !told {
			l.a.note("no head answers at %s yet (%v); trying on", address, err)
			told = true
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// connect dials the bus and says where other nodes reach this one.
func (l *workerLink) connect(ctx context.Context, log *slog.Logger) (c bus.Conn, address string, err error) {
	if l.member == nil {
		switch answers, err := probeBus(ctx, l.busURL, "node/"+l.id, l.password); {
		case err != nil:
			return nil, "", err
		case !answers:
			l.a.note("no head answers at %s yet; trying on", l.busURL)
		}
		c, err = bus.Dial(ctx, bus.DialOptions{
			URLs: []string{l.busURL}, User: "node/" + l.id, Password: l.password, Name: l.id,
			InboxPrefix: wire.InboxPrefix("node-" + l.id), Logger: log,
		})
		return c, "", err
	}
	if l.local != "" {
		address = l.local
	} else if u, err := url.Parse(l.busURL); err == nil {
		address = towards(u.Host).String()
	}
	c, err = l.member.connect(ctx, log)
	return c, address, err
}

// shimAccess is how the node's shims reach the bus when its agent is gone.
func (l *workerLink) shimAccess() *link.Access {
	if l.member == nil {
		return shimAccess(l.busURL, l.id, l.password)
	}
	return l.member.shimAccess()
}

// joinAddress is host:port of a head's API from what people write.
func joinAddress(s string) (string, error) {
	u, err := troupe.ParseAddress(s)
	if err != nil {
		return "", fail(api.ExitUsage, "TRP-C064", "", "--head %q: want host, host:port or https://host:port of a head's API", s)
	}
	return u.Host, nil
}

// onlyLoopback reports whether an address is on loopback; one that is malformed is for
// the head to complain about.
func onlyLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err != nil || host == "localhost" || ip != nil && ip.IsLoopback()
}

// besides is the bus's address next to an API that is wider than loopback: the same
// host, and any port if that of the API is any.
func besides(api, bus string) string {
	host, port, err := net.SplitHostPort(api)
	if err != nil || onlyLoopback(api) {
		return bus
	}
	if port != "0" {
		_, port, _ = net.SplitHostPort(bus)
	}
	return net.JoinHostPort(host, port)
}

func portOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Port()
}

// busAddress accepts the bus's own address or that of the API, whose bus is then at
// the default port.
func busAddress(s string) (string, error) {
	if u, err := url.Parse(s); err == nil && u.Scheme == "nats" && u.Hostname() != "" && u.User == nil {
		return s, nil
	}
	u, err := troupe.ParseAddress(s)
	if err != nil {
		return "", fail(api.ExitUsage, "TRP-C064", "", "--head %q: want nats://host:port", s)
	}
	return busOf(u), nil
}
