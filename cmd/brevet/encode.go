package main

import (
	"encoding/json"
	"fmt"

	"github.com/brevet-dev/brevet/internal/safetext"
)

// encode prints one JSON document on a line of its own. It is for programs, but people look at it too: what is not
// visible is written as JSON escapes, which mean the same.
func (c *console) encode(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(c.out, safetext.JSON(string(data)))
	return err
}
