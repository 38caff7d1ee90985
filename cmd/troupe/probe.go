package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// probeBus asks the bus once whether it takes an identity. The connection that an
// agent keeps tries for ever, since heads come back; a wrong token never gets right,
// so it is told at once. An address where nobody answers is not an error here.
func probeBus(ctx context.Context, address, user, password string) (answers bool, err error) {
	u, err := url.Parse(address)
	if err != nil {
		return false, fmt.Errorf("address of the bus: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return false, nil //nolint:nilerr // told by answers
	}
	defer func() { _ = c.Close() }()
	if t, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(t)
	}
	r := bufio.NewReaderSize(c, 64<<10)
	line, err := r.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "INFO ") {
		return false, fail(api.ExitUsage, "TRP-C064", "the bus of a head is at port 7602 unless --bus-address says otherwise", "what listens at %s is not the bus of a head", u.Host)
	}
	hello, err := json.Marshal(map[string]any{"user": user, "pass": password, "verbose": false, "pedantic": false, "lang": "troupe", "version": version, "protocol": 1})
	if err != nil {
		return true, fmt.Errorf("encode the identity: %w", err)
	}
	if _, err = fmt.Fprintf(c, "CONNECT %s\r\nPING\r\n", hello); err != nil {
		return false, nil //nolint:nilerr // it went away; the agent will try again
	}
	for {
		line, err = r.ReadString('\n')
		switch {
		case err != nil:
			return false, nil //nolint:nilerr // it went away; the agent will try again
		case strings.HasPrefix(line, "PONG"):
			return true, nil
		case strings.HasPrefix(line, "-ERR 'Authorization"):
			return true, fail(api.ExitDenied, "TRP-C077", "take node.token from the folder of this very head", "the bus at %s refuses the token", u.Host)
		}
	}
}
