package api

import (
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/troupe-runtime/troupe/head/access"
	"github.com/troupe-runtime/troupe/runtime/api"
)

// maxUploads are taken at once; each writes to the disk of the head.
const maxUploads = 8

type HashParam struct {
	Hash string `path:"hash" pattern:"^[0-9a-f]{64}$" doc:"SHA-256 of the archive, in hex."`
}

// UploadInput is a body that is passed on as it comes.
type UploadInput struct {
	HashParam
	body io.Reader
	size int64
}

// Resolve implements huma.Resolver.
func (u *UploadInput) Resolve(ctx huma.Context) []error {
	r, _ := humago.Unwrap(ctx)
	u.body, u.size = r.Body, r.ContentLength
	return nil
}

type statusOutput[T any] struct {
	Status int
	Body   T
}

// packages serves the folders that users send along with their jobs.
func (s *server) packages() {
	register(s, op(http.MethodGet, "/api/v1/packages/{hash}", "get-package", "Whether this head has a package, so that it need not be sent"), nil,
		func(r *request, in *HashParam) (*bodyOutput[api.Package], error) {
			p, err := s.b.Package(r, in.Hash)
			if err != nil {
				return nil, err
			}
			return &bodyOutput[api.Package]{s.b.Index(), p}, nil
		})
	put := op(http.MethodPut, "/api/v1/packages/{hash}", "put-package", "Send a package that jobs can name; sending it again changes nothing")
	put.MaxBodyBytes = access.MaxUpload + 1
	put.Description = "The body is the archive, and hashes to what the path says; what does not is not kept. Once this answers, the package is durable. It may be removed when room is needed and no job that has not ended names it."
	busy := make(chan struct{}, maxUploads)
	register(s, put, func(o *huma.Operation) {
		o.RequestBody.Required = true
		o.RequestBody.Content = map[string]*huma.MediaType{"application/octet-stream": {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}}
	}, func(r *request, in *UploadInput) (*statusOutput[api.Package], error) {
		select {
		case busy <- struct{}{}:
			defer func() { <-busy }()
		default:
			p, _ := access.RetryLater(http.StatusServiceUnavailable, access.CodeRate, "too many packages are being sent to this head", 0)
			return nil, p
		}
		p, err := s.b.PutPackage(r, in.Hash, in.size, in.body)
		if err != nil {
			return nil, err
		}
		return &statusOutput[api.Package]{http.StatusOK, p}, nil
	})
}
