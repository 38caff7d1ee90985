package checkpoint

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Location is where a store is: a directory, or a prefix of a bucket.
type Location struct {
	Dir string // absolute clean path of a directory store; the fields below are empty then

	Bucket    string
	Prefix    string // without slashes at its ends; may be empty
	Endpoint  string // of another server than AWS, as http://host:9000; empty: AWS
	Region    string // empty: what the node's configuration says, else us-east-1
	PathStyle bool   // the bucket stands in the path and not in the host name
}

// options that may follow the '?' of an s3:// address.
var options = []string{"endpoint", "path-style", "region"}

// ParseStore reads the address of a store: an absolute clean path, or
// s3://bucket/prefix?endpoint=URL&path-style=true&region=NAME. Credentials have no
// place in it, since it is replicated and shown: each node has its own. Errors wrap
// ErrName.
func ParseStore(store string) (Location, error) {
	if !Remote(store) {
		if strings.Contains(store, "://") {
			return Location{}, badName("store %q: a path or an s3:// address", trim(store))
		}
		if err := validAbsolute(store); err != nil {
			return Location{}, fmt.Errorf("store: %w", err)
		}
		return Location{Dir: store}, nil
	}
	root, query, asked := strings.Cut(store, "?")
	if err := validRemote(root); err != nil {
		return Location{}, err
	}
	l := Location{}
	l.Bucket, l.Prefix, _ = strings.Cut(strings.TrimPrefix(root, s3Scheme), "/")
	if !asked {
		return l, nil
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return Location{}, badName("store %q: %s", trim(root), err)
	}
	for name, v := range values {
		if !slices.Contains(options, name) || len(v) != 1 {
			return Location{}, badName("store %q: option %q; known are %s, each once", trim(root), trim(name), strings.Join(options, ", "))
		}
	}
	l.Endpoint, l.Region = values.Get("endpoint"), values.Get("region")
	if err := validEndpoint(l.Endpoint); err != nil {
		return Location{}, badName("store %q: endpoint: %s", trim(root), err)
	}
	if p := values.Get("path-style"); values.Has("path-style") {
		if l.PathStyle, err = strconv.ParseBool(p); err != nil {
			return Location{}, badName("store %q: path-style=%q; true or false", trim(root), trim(p))
		}
	}
	return l, nil
}

// validEndpoint admits scheme and host alone.
func validEndpoint(s string) error {
	if s == "" {
		return nil
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return errors.New("not a URL")
	case u.User != nil:
		return errors.New("credentials do not belong into an address; each node takes its own from its environment or ~/.aws")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.Path != "" && u.Path != "/", u.RawQuery != "", u.Fragment != "":
		return fmt.Errorf("%q; want http://host:port or https://host:port", trim(s))
	}
	return nil
}
