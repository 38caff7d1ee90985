package bus

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Closed is the end of one connection.
type Closed struct {
	User string // as which it was let in
	Name string // DialOptions.Name
}

const (
	monitorUser   = "$monitor"
	closedSubject = "$SYS.ACCOUNT.*.DISCONNECT"
	maxClosed     = 64 << 10 // bytes of one message
)

// monitor listens to the server's own account, in which each server of a cluster tells
// every other one of the connections that end.
type monitor struct {
	password string // random for each server; never leaves this process
	told     func(Closed)
	nc       *nats.Conn
}

func newMonitor(told func(Closed)) (*monitor, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, fmt.Errorf("bus: draw a secret: %w", err)
	}
	return &monitor{password: hex.EncodeToString(b[:]), told: told}, nil
}

func (m *monitor) is(user, password string) bool {
	return m != nil && user == monitorUser && subtle.ConstantTimeCompare([]byte(password), []byte(m.password)) == 1
}

func (m *monitor) user(account *server.Account) *server.User {
	return &server.User{Username: monitorUser, Account: account, Permissions: &server.Permissions{
		Publish:   &server.SubjectPermission{Deny: []string{">"}},
		Subscribe: &server.SubjectPermission{Allow: []string{closedSubject}},
	}}
}

func (m *monitor) listen(ns *server.Server) error {
	nc, err := nats.Connect("", nats.InProcessServer(ns), nats.UserInfo(monitorUser, m.password), nats.Name("monitor"), nats.MaxReconnects(-1))
	if err != nil {
		return fmt.Errorf("bus: listen to closed connections: %w", err)
	}
	m.nc = nc
	_, err = nc.Subscribe(closedSubject, func(msg *nats.Msg) {
		var e struct {
			Client struct {
				User string `json:"user"`
				Name string `json:"name"`
			} `json:"client"`
		}
		if len(msg.Data) > maxClosed || json.Unmarshal(msg.Data, &e) != nil {
			return
		}
		m.told(Closed{User: e.Client.User, Name: e.Client.Name})
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		return fmt.Errorf("bus: listen to closed connections: %w", err)
	}
	return nil
}

func (m *monitor) close() {
	if m != nil && m.nc != nil {
		m.nc.Close()
	}
}
