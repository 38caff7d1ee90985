package api

import (
	"fmt"
	"reflect"
)

// ZeroRefused says what is wrong with a field that was written down with nothing in it though
// it has a default, "" if nothing is: a 0 is not taken for "as usual" in silence.
func ZeroRefused(f reflect.StructField, v reflect.Value) string {
	usual, ok := f.Tag.Lookup("usual")
	if !ok || !v.IsZero() {
		return ""
	}
	return fmt.Sprintf("cannot be 0: leave it out for the default, %s", usual)
}
