// Package safetext makes untrusted text safe to display: whatever could move a cursor, or hide or reorder text, becomes a
// visible escape.
//
// It never drops a character unseen: an escape shows that there was one. It does not escape markup, which is text too.
package safetext

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
)

// maxMarks is how many combining marks may follow one letter: enough for any language, but too few to cover the
// neighbouring lines.
const maxMarks = 4

// Visible reports whether a character shows as itself: it is not a control character, not invisible, does not reorder
// text and does not select a variant of the character before it.
func Visible(r rune) bool {
	const blankBraille = 0x2800
	return unicode.IsPrint(r) && r != blankBraille &&
		!unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// Text makes one line of text safe to show. It also escapes line ends, so split text into lines before calling it.
func Text(s string) string {
	return escape(s, func(r rune) string { return fmt.Sprintf("\\u%04x", r) })
}

// JSON makes a JSON document safe to show. Its meaning does not change.
func JSON(document string) string {
	return escape(document, func(r rune) string {
		if first, second := utf16.EncodeRune(r); first != unicode.ReplacementChar {
			return fmt.Sprintf("\\u%04x\\u%04x", first, second)
		}
		return fmt.Sprintf("\\u%04x", r)
	})
}

func escape(s string, written func(rune) string) string {
	var out strings.Builder
	each(s, func(r rune, visible bool) {
		if visible {
			out.WriteRune(r)
			return
		}
		out.WriteString(written(r))
	})
	return out.String()
}

// each calls on for each character of a text, and says whether it may show as itself.
func each(s string, on func(r rune, visible bool)) {
	marks := 0
	for _, r := range s {
		if unicode.Is(unicode.M, r) {
			marks++
		} else {
			marks = 0
		}
		on(r, Visible(r) && marks <= maxMarks)
	}
}

// Piece is a part of a text: either visible text, or the escapes of hidden characters.
type Piece struct {
	Text   string
	Hidden bool
}

// Pieces splits a text, for callers that can mark hidden characters in some other way. Line ends count as visible text.
func Pieces(s string) []Piece {
	var all []Piece
	each(s, func(r rune, visible bool) {
		one := Piece{string(r), false}
		if !visible && r != '\n' {
			one = Piece{fmt.Sprintf("\\u%04x", r), true}
		}
		if last := len(all) - 1; last >= 0 && all[last].Hidden == one.Hidden {
			all[last].Text += one.Text
			return
		}
		all = append(all, one)
	})
	return all
}

// MixesAlphabets reports whether a text has both Latin letters and letters of alphabets that look like Latin.
func MixesAlphabets(text string) bool {
	latin, alike := false, false
	for _, r := range text {
		latin = latin || unicode.Is(unicode.Latin, r)
		alike = alike || unicode.In(r, unicode.Cyrillic, unicode.Greek, unicode.Armenian, unicode.Cherokee, unicode.Coptic, unicode.Lisu)
	}
	return latin && alike
}

// longestWord is the longest word that Clip keeps, in bytes: tokens, keys and JWTs are longer than the words of messages.
const longestWord = 24

// Clip makes one safe line of at most about the given number of bytes from a message of another system. It replaces long words,
// because they could be secrets that the message repeats.
func Clip(s string, most int) string {
	words := strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !Visible(r) })
	var out strings.Builder
	for i, word := range words {
		if len(word) > longestWord {
			word = "[...]"
		}
		if out.Len()+len(word) >= most {
			out.WriteString(" ...")
			break
		}
		if i > 0 {
			out.WriteByte(' ')
		}
		out.WriteString(word)
	}
	return Text(out.String())
}

// Shorten returns at most the given number of characters. If it drops some, the last one is an ellipsis.
func Shorten(s string, most int) string {
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	return string(runes[:most-1]) + "…"
}
