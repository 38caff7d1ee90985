package main

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v4"
)

// decodeInto reads a YAML or JSON file against the JSON names of a type. Every complaint
// names file, line and column; help is the command to look at.
func decodeInto(path, help string, data []byte, into any) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = malformed(help, "%s does not parse: %v", path, p)
		}
		if x, ok := errors.AsType[*exitError](err); ok {
			x.help = help
		}
	}()
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return malformed(help, "%s: %s", path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(doc.Content) == 0 {
		return malformed(help, "%s is empty", path)
	}
	tree, err := plainTree(path, doc.Content[0], reflect.TypeOf(into).Elem(), 0)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(tree)
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		return malformed(help, "%s: %v", path, err)
	}
	return nil
}
