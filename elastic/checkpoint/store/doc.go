// Package store opens a checkpoint store by its address: a directory, or a prefix of an
// S3 bucket. The S3 store lives here, and with it the only use of the AWS SDK; what a
// store must do is said by checkpoint.Store, and one conformance suite holds both to it.
//
// In a bucket a step is its objects, below the same names as in a directory. What makes a
// commit safe there: manifest.json and committed.json are put under the condition that
// the name is free, so of two writers one wins and the other reads what won; each upload
// carries a checksum for each part that the server compares, and is asked for its length
// and checksum again before anybody calls it prepared; a listing only finds candidates,
// the truth about each is read from its marks. Credentials come from the node's standard
// chain (environment, ~/.aws, web identity, instance role) and are neither logged nor sent
// anywhere. Memory is bounded by the parts in flight.
//
// What may not live here: the order of the commit protocol, the log, retention.
package store
