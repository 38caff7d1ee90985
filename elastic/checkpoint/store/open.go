package store

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"

	"github.com/troupe-runtime/troupe/elastic/checkpoint"
)

const (
	// tries of one request: a store that is away for a moment costs no step.
	tries = 4
	// headerLimit bounds the wait for an answer to begin; a body has no limit but its
	// context's, since it may be large.
	headerLimit = 30 * time.Second
	dialLimit   = 5 * time.Second
	// backoff is the longest pause between two tries.
	backoff = 3 * time.Second
	// inFlight bounds the parts that are in memory together.
	inFlight = 6
)

// Stores opens stores and keeps the connections to buckets. It may be used by several
// goroutines.
type Stores struct {
	fs     checkpoint.FS
	writer string

	mu      sync.Mutex
	clients map[checkpoint.Location]*s3.Client
	parts   *slots
	backoff time.Duration
	part    int64 // bytes of one part of a large upload
}

// New makes an opener. fsys is where directory stores are; writer as in
// checkpoint.NewDirectory.
func New(fsys checkpoint.FS, writer string) *Stores {
	return &Stores{fs: fsys, writer: writer, clients: map[checkpoint.Location]*s3.Client{}, parts: newSlots(inFlight), backoff: backoff, part: writePart}
}

// Open implements checkpoint.Opener. It asks the network nothing.
func (s *Stores) Open(ctx context.Context, address string) (checkpoint.Store, error) {
	l, err := checkpoint.ParseStore(address)
	if err != nil {
		return nil, err
	}
	if l.Dir != "" {
		return checkpoint.NewDirectory(s.fs, l.Dir, s.writer)
	}
	client, err := s.client(ctx, l)
	if err != nil {
		return nil, err
	}
	return &Bucket{client: client, at: l, address: address, parts: s.parts, part: s.part}, nil
}

func (s *Stores) client(ctx context.Context, l checkpoint.Location) (*s3.Client, error) {
	key := checkpoint.Location{Endpoint: l.Endpoint, Region: l.Region, PathStyle: l.PathStyle}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.clients[key]; c != nil {
		return c, nil
	}
	web := awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
		t.ResponseHeaderTimeout = headerLimit
		t.MaxIdleConnsPerHost = 2 * inFlight
	}).WithDialerOptions(func(d *net.Dialer) { d.Timeout = dialLimit })
	cfg, err := config.LoadDefaultConfig(ctx,
		config.WithHTTPClient(web), config.WithLogger(logging.Nop{}),
		config.WithRetryer(func() aws.Retryer {
			return retry.NewStandard(func(o *retry.StandardOptions) { o.MaxAttempts, o.MaxBackoff = tries, s.backoff })
		}),
		// Other servers than AWS stumble over the checksums that newer SDKs add to all
		// requests; ours are set where they matter.
		config.WithRequestChecksumCalculation(aws.RequestChecksumCalculationWhenRequired),
		config.WithResponseChecksumValidation(aws.ResponseChecksumValidationWhenRequired))
	if err != nil {
		return nil, fmt.Errorf("read the node's AWS configuration: %w", err)
	}
	c := s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.UsePathStyle = l.PathStyle
		if l.Endpoint != "" {
			o.BaseEndpoint = aws.String(l.Endpoint)
		}
		if l.Region != "" {
			o.Region = l.Region
		}
		if o.Region == "" {
			o.Region = "us-east-1"
		}
	})
	s.clients[key] = c
	return c, nil
}

// slots bounds the parts in memory: one token for each.
type slots struct {
	turn   chan struct{} // held while tokens are taken, or two takers of several could wait for each other
	tokens chan struct{}
}

func newSlots(n int) *slots {
	return &slots{turn: make(chan struct{}, 1), tokens: make(chan struct{}, n)}
}

// hold takes n tokens, at most as many as there are.
func (s *slots) hold(ctx context.Context, n int) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.turn }()
	for i := range n {
		select {
		case s.tokens <- struct{}{}:
		case <-ctx.Done():
			s.free(i)
			return ctx.Err()
		}
	}
	return nil
}

func (s *slots) free(n int) {
	for range n {
		<-s.tokens
	}
}
