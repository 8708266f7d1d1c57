package clouds

import (
	"encoding/binary"
	"errors"
)

var errProto = errors.New("malformed protocol buffer")

// protoFields are the fields of a protocol buffer message by number: numbers as uint64, everything else as []byte.
type protoFields map[int][]any

// readProto reads one message.
func readProto(text []byte) (protoFields, error) {
	fields := protoFields{}
	for len(text) > 0 {
		tag, n := binary.Uvarint(text)
		if n <= 0 {
			return nil, errProto
		}
		text = text[n:]
		number, n := binary.Uvarint(text)
		if n <= 0 {
			return nil, errProto
		}
		text = text[n:]
		field := int(tag >> 3)
		switch tag & 7 {
		case 0:
			fields[field] = append(fields[field], number)
		case 2:
			if number > uint64(len(text)) {
				return nil, errProto
			}
			fields[field] = append(fields[field], text[:number])
			text = text[number:]
		default: // none of the messages here has other types
			return nil, errProto
		}
	}
	return fields, nil
}

func (f protoFields) texts(field int) []string {
	var out []string
	for _, value := range f[field] {
		if text, ok := value.([]byte); ok {
			out = append(out, string(text))
		}
	}
	return out
}

func (f protoFields) text(field int) string {
	if all := f.texts(field); len(all) > 0 {
		return all[len(all)-1]
	}
	return ""
}

func (f protoFields) number(field int) int64 {
	if all := f[field]; len(all) > 0 {
		if n, ok := all[len(all)-1].(uint64); ok {
			return int64(n)
		}
	}
	return 0
}

// each reads all messages of a field.
func (f protoFields) each(field int, read func(protoFields)) error {
	for _, text := range f.texts(field) {
		inner, err := readProto([]byte(text))
		if err != nil {
			return err
		}
		read(inner)
	}
	return nil
}

// readObject reads an object as client-go sends it: four bytes of magic, and a message Unknown whose field raw is the object. The
// field numbers are those of the files generated.proto of Kubernetes 1.34.
func readObject(body []byte) (kubeObject, error) {
	const magic = "k8s\x00"
	if len(body) < len(magic) || string(body[:len(magic)]) != magic {
		return kubeObject{}, errProto
	}
	envelope, err := readProto(body[len(magic):])
	if err != nil {
		return kubeObject{}, err
	}
	var out kubeObject
	err = envelope.each(1, func(f protoFields) { out.APIVersion, out.Kind = f.text(1), f.text(2) })
	raw, err2 := readProto([]byte(envelope.text(2)))
	if err := errors.Join(err, err2); err != nil {
		return kubeObject{}, err
	}
	var inner error
	err = raw.each(1, func(f protoFields) {
		out.Metadata.Name, out.Metadata.Namespace = f.text(1), f.text(3)
		inner = f.each(13, func(f protoFields) {
			out.Metadata.Owners = append(out.Metadata.Owners, kubeOwner{Kind: f.text(1), Name: f.text(3), UID: f.text(4)})
		})
	})
	if err := errors.Join(err, inner); err != nil {
		return kubeObject{}, err
	}
	switch out.Kind {
	case "TokenRequest":
		err = raw.each(2, func(f protoFields) {
			out.Spec.Audiences, out.Spec.ExpirationSeconds = f.texts(1), f.number(4)
			out.Spec.bound = len(f[3]) > 0
		})
	case "Role", "ClusterRole":
		err = raw.each(2, func(f protoFields) {
			out.Rules = append(out.Rules, kubeRule{Verbs: f.texts(1), APIGroups: f.texts(2), Resources: f.texts(3), ResourceNames: f.texts(4)})
		})
	case "RoleBinding", "ClusterRoleBinding":
		err = errors.Join(raw.each(2, func(f protoFields) {
			out.Subjects = append(out.Subjects, kubeSubject{Kind: f.text(1), Name: f.text(3), Namespace: f.text(4)})
		}), raw.each(3, func(f protoFields) { out.RoleRef = kubeRoleRef{Kind: f.text(2), Name: f.text(3)} }))
	}
	return out, err
}
