package checkpoint

import _ "embed"

// Schema is the JSON schema (draft 2020-12) of manifest.json, for readers that are
// not this package. What a schema cannot say (order, sums, the self-hash) only Parse
// checks.
//
//go:embed manifest.schema.json
var Schema []byte
