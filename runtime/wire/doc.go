// Package wire holds the messages that head and nodes exchange over the bus, the
// subjects they travel on, and the one safe msgpack codec of the project. It is the
// only importer of msgpack: Marshal and Unmarshal refuse what a length, a depth or
// trailing bytes would turn into an attack. Messages carry the struct tags of JSON;
// no `any` and no map that gets hashed may stand in one.
package wire
