package ledger

import (
	"slices"

	"github.com/jackc/pgx/v5/pgtype"
)

// roomyArrays is the codec for bytea[] of connections that append entries. It makes room for a whole array before it encodes the
// elements. Otherwise pgx lets its buffer grow with the elements, and allocates many times the size of a batch.
type roomyArrays struct{ *pgtype.ArrayCodec }

func useRoomyArrays(types *pgtype.Map) {
	bytea, _ := types.TypeForOID(pgtype.ByteaOID) // built in
	types.RegisterType(&pgtype.Type{
		Name: "_bytea", OID: pgtype.ByteaArrayOID, Codec: roomyArrays{&pgtype.ArrayCodec{ElementType: bytea}},
	})
}

// PlanEncode implements pgtype.Codec.
func (c roomyArrays) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if plan := c.ArrayCodec.PlanEncode(m, oid, format, value); plan != nil {
		return roomyPlan{plan}
	}
	return nil
}

type roomyPlan struct{ pgtype.EncodePlan }

func (p roomyPlan) Encode(value any, buf []byte) ([]byte, error) {
	if array, ok := value.(pgtype.FlatArray[[]byte]); ok {
		size := 0
		for _, element := range array {
			size += 128 + len(element) // with room for the other arguments of the same entry
		}
		buf = slices.Grow(buf, size)
	}
	return p.EncodePlan.Encode(value, buf)
}
