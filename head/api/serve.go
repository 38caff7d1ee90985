package api

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/troupe-runtime/troupe/head/access"
)

// How the server treats connections.
const (
	headerTimeout = 5 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 32 << 10
	shutdownTime  = 5 * time.Second
)

// Serve answers requests on ln until ctx ends, then lets writes under way finish for
// up to 5 s (streams and blocking reads end at once) and returns nil. It returns an
// error only if the listener fails. It closes ln.
func Serve(ctx context.Context, ln net.Listener, h http.Handler) error {
	return serve(ctx, ln, h, nil, nil)
}

// Protocols are what a listener with TLS speaks besides HTTP, by ALPN name.
type Protocols map[string]func(*http.Server, *tls.Conn, http.Handler)

// ServeTLS is Serve over TLS, HTTP/2 included.
func ServeTLS(ctx context.Context, ln net.Listener, h http.Handler, config *tls.Config, more Protocols) error {
	return serve(ctx, ln, h, config, more)
}

func serve(ctx context.Context, ln net.Listener, h http.Handler, config *tls.Config, more Protocols) error {
	stop, cancel := context.WithCancel(context.Background())
	defer cancel()
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		// No WriteTimeout: the guard gives each write its own deadline.
		BaseContext: func(net.Listener) context.Context { return access.WithClosing(stop, ctx.Done()) },
		ConnContext: access.ConnContext,
		ErrorLog:    slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
	bounded := access.Limit(ln, access.MaxConns, access.MaxConnsAnonymous)
	listen := func() error { return srv.Serve(bounded) }
	if config != nil {
		srv.TLSConfig = config.Clone()
		srv.TLSNextProto = more
		srv.Protocols = &http.Protocols{}
		srv.Protocols.SetHTTP1(true)
		srv.Protocols.SetHTTP2(true)
		for name := range more {
			srv.TLSConfig.NextProtos = append(srv.TLSConfig.NextProtos, name)
		}
		listen = func() error { return srv.ServeTLS(bounded, "", "") }
	}
	failed := make(chan error, 1)
	go func() { failed <- listen() }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	grace, done := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer done()
	err := srv.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		cancel() // whatever still runs has had its time
		err = srv.Close()
	}
	if ended := <-failed; err == nil && !errors.Is(ended, http.ErrServerClosed) {
		err = ended
	}
	return err
}
