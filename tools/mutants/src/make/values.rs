//! Values that a function may return instead of what it computes, by its type.

use syn::{GenericArgument, PathArguments, ReturnType, Type};

/// More than these of one function tell nothing new.
const MOST: usize = 6;

/// As source. An empty one stands for `()`.
pub(crate) fn of(output: &ReturnType) -> Vec<String> {
    match output {
        ReturnType::Default => vec![String::new()],
        ReturnType::Type(_, ty) => {
            let mut values = of_type(ty);
            values.truncate(MOST);
            values
        }
    }
}

fn of_type(ty: &Type) -> Vec<String> {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    match ty {
        Type::Path(path) => {
            let Some(last) = path.path.segments.last() else { return vec![] };
            let inner = || argument(&last.arguments).map(of_type).unwrap_or_default();
            let each = |how: fn(&str) -> String| inner().iter().map(|value| how(value)).collect();
            match last.ident.to_string().as_str() {
                "bool" => texts(&["true", "false"]),
                "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => texts(&["0", "1"]),
                "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => texts(&["0", "1", "-1"]),
                "f32" | "f64" => texts(&["0.0", "1.0", "-1.0"]),
                "String" => texts(&["String::new()", "\"xyzzy\".into()"]),
                "Option" => {
                    let some: Vec<_> = each(|value| format!("Some({value})"));
                    [texts(&["None"]), some].concat()
                }
                "Result" => each(|value| format!("Ok({value})")),
                "Box" => each(|value| format!("Box::new({value})")),
                "Vec" => [texts(&["vec![]"]), each(|value| format!("vec![{value}]"))].concat(),
                _ => texts(&["Default::default()"]),
            }
        }
        Type::Tuple(tuple) if tuple.elems.is_empty() => texts(&["()"]),
        Type::Tuple(tuple) => tuple
            .elems
            .iter()
            .map(of_type)
            .reduce(|heads, tails| {
                let pair = |head| tails.iter().map(move |tail| format!("{head}, {tail}"));
                heads.iter().flat_map(pair).collect()
            })
            .unwrap_or_default()
            .into_iter()
            .map(|inside| format!("({inside},)"))
            .collect(),
        Type::Array(array) => of_type(&array.elem)
            .iter()
            .map(|value| format!("std::array::from_fn(|_| {value})"))
            .collect(),
        Type::Reference(reference) => match &*reference.elem {
            Type::Path(path) if path.path.is_ident("str") => texts(&["\"\"", "\"xyzzy\""]),
            Type::Slice(slice) => {
                let one = |value: &String| format!("Vec::leak(vec![{value}])");
                let ones = of_type(&slice.elem);
                texts(&["Vec::leak(Vec::new())"]).into_iter().chain(ones.iter().map(one)).collect()
            }
            other => {
                of_type(other).iter().map(|value| format!("Box::leak(Box::new({value}))")).collect()
            }
        },
        Type::Paren(paren) => of_type(&paren.elem),
        _ => vec![],
    }
}

/// The first type among a path's arguments.
fn argument(arguments: &PathArguments) -> Option<&Type> {
    let PathArguments::AngleBracketed(arguments) = arguments else { return None };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_follow_the_type() {
        let of = |output: &str| of(&syn::parse_str(output).expect(output));
        assert_eq!(of(""), [""]);
        assert_eq!(of("-> Result<bool, Error>"), ["Ok(true)", "Ok(false)"]);
        assert_eq!(of("-> io::Result<()>"), ["Ok(())"]);
        assert_eq!(
            of("-> Option<&mut Peer>"),
            ["None", "Some(Box::leak(Box::new(Default::default())))"]
        );
        assert_eq!(of("-> (bool, u8)"), ["(true, 0,)", "(true, 1,)", "(false, 0,)", "(false, 1,)"]);
        assert_eq!(
            of("-> &[u8]"),
            ["Vec::leak(Vec::new())", "Vec::leak(vec![0])", "Vec::leak(vec![1])"]
        );
        assert_eq!(of("-> impl Iterator<Item = u8>"), [""; 0]);
        assert_eq!(of("-> !"), [""; 0]);
    }
}
