package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v4"
)

// decodeInto reads a YAML or JSON file against the JSON names of a type. Every complaint
// names file, line and column; help is the command to look at.
func decodeInto(path, help string, data []byte, into any) (err error) {
	defer func() {
		if x, ok := errors.AsType[*exitError](err); ok {
			x.help = help
		}
	}()
	doc, err := yamlDocument(path, data, "")
	if err != nil {
		return err
	}
	tree, err := plainTree(path, doc, reflect.TypeOf(into).Elem(), 0)
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

// yamlDocument is the one document of a YAML or JSON file; needs says what an empty file
// lacks. Nothing of a file is passed over: a second document is refused.
func yamlDocument(path string, data []byte, needs string) (doc *yaml.Node, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = malformed("", "%s does not parse: %v", path, p)
		}
	}()
	wrong := func(err error) error {
		return malformed("", "%s: %s", path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	var first, second yaml.Node
	if err := d.Decode(&first); err != nil && !errors.Is(err, io.EOF) {
		return nil, wrong(err)
	}
	if len(first.Content) == 0 {
		return nil, malformed("", "%s is empty%s", path, needs)
	}
	switch err := d.Decode(&second); {
	case err == nil:
		return nil, at(path, &second, "a second document, where one belongs; write it into a file of its own")
	case !errors.Is(err, io.EOF):
		return nil, wrong(err)
	}
	return first.Content[0], nil
}
