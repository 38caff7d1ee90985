package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/troupe-runtime/troupe/runtime/api"
	"github.com/troupe-runtime/troupe/runtime/bus"
	"github.com/troupe-runtime/troupe/runtime/bus/link"
	"github.com/troupe-runtime/troupe/runtime/clock"
	"github.com/troupe-runtime/troupe/runtime/disk"
	"github.com/troupe-runtime/troupe/runtime/join"
	"github.com/troupe-runtime/troupe/runtime/trust"
	"github.com/troupe-runtime/troupe/runtime/wire"
	troupe "github.com/troupe-runtime/troupe/sdk"
)

// joinTokenEnv holds the join key itself, for containers that mount no files.
const joinTokenEnv = "TROUPE_JOIN_TOKEN" //nolint:gosec // the name of a variable

// joinKeyPath is where hosts keep the join key that they share.
func joinKeyPath() (string, error) {
	config, err := troupe.ConfigPath()
	if err != nil {
		return "", err
	}
	return filepath.Join(filepath.Dir(config), "join.key"), nil
}

// joinKey finds the key: the environment's, else that of the file that was named, else
// the user's own file.
func joinKey(file string) (join.Key, error) {
	if s, ok := os.LookupEnv(joinTokenEnv); ok {
		k, err := join.ParseKey(s)
		if err != nil {
			return k, malformed("copy the line of join.key as it is, or unset "+joinTokenEnv, "%s: %v", joinTokenEnv, err)
		}
		return k, nil
	}
	path := file
	if path == "" {
		var err error
		if path, err = joinKeyPath(); err != nil {
			return join.Key{}, err
		}
	}
	k, err := join.ReadKey(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return k, fail(api.ExitNever, "TRP-J078", "troupe join-key new", "there is no join key at %s; hosts that run together share one", path)
	case errors.Is(err, trust.ErrOpenKey):
		return k, fail(api.ExitDenied, "TRP-J077", "chmod 600 "+path, "the join key %s can be read by others than its owner, and is not used", path)
	case errors.Is(err, join.ErrKey):
		return k, malformed("copy the file of another host again, or make a new key: troupe join-key new", "%v", err)
	}
	return k, err
}

func (a *app) joinKeyCommand() *cobra.Command {
	c := &cobra.Command{Use: "join-key", Short: "The secret that hosts share to run together: new, path", Example: "  troupe join-key new\n  scp ~/.config/troupe/join.key gpu-02:.config/troupe/"}
	var file string
	where := func() (string, error) {
		if file != "" {
			return filepath.Abs(file)
		}
		return joinKeyPath()
	}
	c.AddCommand(&cobra.Command{
		Use: "new", Short: "Make a key, once for all hosts", Args: cobra.NoArgs, Example: "  troupe join-key new",
		RunE: func(*cobra.Command, []string) error {
			path, err := where()
			if err != nil {
				return err
			}
			err = join.WriteKey(path)
			if errors.Is(err, fs.ErrExist) {
				return fail(api.ExitConflict, "TRP-J073", "copy it to the other hosts; remove it first for a new one", "there is a join key at %s already", path)
			}
			if err != nil {
				return err
			}
			a.one(map[string]string{"file": path}, path, func() { _, _ = fmt.Fprintln(a.out, path) })
			a.note("copy it to each host, over a safe way: ssh HOST 'umask 077; mkdir -p ~/.config/troupe; cat > ~/.config/troupe/join.key' < %s", path)
			return nil
		},
	}, &cobra.Command{
		Use: "path", Short: "Where the key of this user is", Args: cobra.NoArgs, Example: "  troupe join-key path",
		RunE: func(*cobra.Command, []string) error {
			path, err := where()
			if err != nil {
				return err
			}
			if _, err := joinKey(path); err != nil {
				return err
			}
			a.one(map[string]string{"file": path}, path, func() { _, _ = fmt.Fprintln(a.out, path) })
			return nil
		},
	})
	c.PersistentFlags().StringVar(&file, "file", "", "`file`: of the key (default ~/.config/troupe/join.key)")
	return c
}

// membership is a node's place in a cluster beyond loopback.
type membership struct {
	identity *trust.Identity
	node     string
	bus      string     // nats://host:port
	local    netip.Addr // where other nodes reach this one
	joined   join.Joined
	file     string
}

// knownHead is what a node's folder keeps of the head that took it, so that a restart
// needs no join.
type knownHead struct {
	Asked string `json:"asked"` // the address as it was given
	Bus   string `json:"bus"`
}

const knownHeadFile = "head.json"

// openMembership reads a node's identity; known says that it holds, for this address.
func openMembership(dir, address string) (m *membership, known bool, err error) {
	folder := filepath.Join(dir, "identity")
	m = &membership{file: filepath.Join(folder, knownHeadFile)}
	if m.identity, err = trust.OpenIdentity(folder); err != nil {
		return nil, false, err
	}
	if m.node, err = m.identity.Node(); err != nil {
		return nil, false, err
	}
	var k knownHead
	b, err := os.ReadFile(m.file)
	if err != nil || json.Unmarshal(b, &k) != nil || k.Asked != address || !m.identity.Valid(time.Now()) {
		return m, false, nil //nolint:nilerr // then it joins
	}
	m.bus = k.Bus
	return m, true, nil
}

// ask joins once; see runtime/join for its errors.
func (m *membership) ask(ctx context.Context, address, local string, key join.Key, purpose any) error {
	j, err := join.Ask(ctx, join.Request{Address: address, Local: local, Key: key, Identity: m.identity, Purpose: purpose, Now: time.Now})
	if err != nil {
		return err
	}
	m.joined, m.local = j, j.Local
	m.bus = "nats://" + net.JoinHostPort(j.Remote.String(), fmt.Sprint(j.BusPort))
	b, err := json.Marshal(knownHead{Asked: address, Bus: m.bus})
	if err != nil {
		return fmt.Errorf("encode what is known of the head: %w", err)
	}
	return disk.WriteFileAtomic(disk.OS(), m.file, append(b, '\n'), 0o600)
}

// joinProblem is what a user reads of a join that cannot come to anything; nil: try on.
func joinProblem(address string, err error) error {
	if no, ok := errors.AsType[*join.Refused](err); ok {
		if no.Again {
			return nil
		}
		code := no.Exit
		if code == 0 {
			code = api.ExitDenied
		}
		name := no.Code
		if name == "" {
			name = "TRP-J077"
		}
		return fail(code, name, no.Help, "the head at %s refuses this host: %s", address, no.Text)
	}
	switch {
	case errors.Is(err, join.ErrDenied):
		return fail(api.ExitDenied, "TRP-J077", "copy the join key of the other hosts here (troupe join-key path says where it is)",
			"the head at %s does not accept the join key of this host", address)
	case errors.Is(err, join.ErrImpostor):
		return fail(api.ExitDenied, "TRP-J079", "make sure that the address is right and that all hosts have the same join key",
			"what answers at %s cannot prove that it knows the join key; nothing was sent to it", address)
	case errors.Is(err, join.ErrNotHead):
		return fail(api.ExitUnreachable, "TRP-J069", "name the API address of a head, or the endpoint of a launch over several hosts", "%s: %v", address, err)
	case errors.Is(err, trust.ErrStranger), errors.Is(err, trust.ErrRole):
		return fail(api.ExitDenied, "TRP-J079", "", "the head at %s sent a certificate that cannot be used: %v", address, err)
	}
	return nil
}

// connect dials the bus with the certificate, and keeps the certificate from ending.
func (m *membership) connect(ctx context.Context, log *slog.Logger) (bus.Conn, error) {
	c, err := bus.Dial(ctx, bus.DialOptions{
		URLs: []string{m.bus}, User: "node/" + m.node, Name: m.node, InboxPrefix: wire.InboxPrefix("node-" + m.node), Logger: log,
		TLS: trust.ClientTLS(m.identity.Root(), trust.RoleBus, m.identity.Certificate, time.Now),
	})
	if err != nil {
		return nil, err
	}
	r := trust.Renewer{Identity: m.identity, Clock: clock.Real(), Logger: log, Ask: func(ctx context.Context, csr []byte) ([][]byte, error) {
		return renewOver(ctx, c, m.node, csr)
	}}
	go r.Run(ctx)
	return c, nil
}

// shimAccess is how the node's shims reach the bus when its agent is gone: with the node's
// certificate, as they find it then.
func (m *membership) shimAccess() *link.Access {
	return &link.Access{
		URLs: []string{m.bus}, User: "shim/" + m.node, InboxPrefix: wire.InboxPrefix("shim-" + m.node), Identity: filepath.Dir(m.file),
	}
}

// renewOver asks for a certificate over the bus.
func renewOver(ctx context.Context, c bus.Conn, node string, csr []byte) ([][]byte, error) {
	b, err := wire.Marshal(wire.RenewRequest{CSR: csr})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	raw, err := c.Request(ctx, wire.HeadRenew+node, b)
	if err != nil {
		return nil, err
	}
	var r wire.RenewReply
	if err := wire.Unmarshal(raw, &r); err != nil {
		return nil, err
	}
	if r.Error != "" {
		return nil, errors.New(r.Error)
	}
	return r.Chain, nil
}

// towards is this machine's address on the way to another one; it sends nothing.
func towards(address string) netip.Addr {
	c, err := net.Dial("udp", address)
	if err != nil {
		return netip.Addr{}
	}
	defer func() { _ = c.Close() }()
	a, _ := netip.ParseAddrPort(c.LocalAddr().String())
	return a.Addr().Unmap()
}
