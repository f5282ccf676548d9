//! Checks of shapes and dtypes, with candle-flash-attn's messages where it makes the same check.
use candle::{bail, DType, Layout, Result, Tensor};

/// The sizes of a call, after q, k and v were found to match.
#[derive(Debug)]
pub(crate) struct Dims {
    pub(crate) heads: usize,
    pub(crate) out: Vec<usize>,
    pub(crate) lse: Vec<usize>,
}

const MAX_HEAD_DIM: usize = 576;

/// Checks heads and head dims, and that the last dimension is contiguous.
fn rows(q: &Layout, k: &Layout, v: &Layout) -> Result<()> {
    for (name, layout) in [("q", q), ("k", k), ("v", v)] {
        let stride = layout.stride();
        if stride.last() != Some(&1) && layout.dims().last() != Some(&1) {
            bail!("the last dim of {name} must be contiguous {stride:?}")
        }
    }
    let [(heads, head_dim), (heads_k, k_dim), (heads_v, v_dim)] =
        [q, k, v].map(|l| (l.dims()[l.dims().len() - 2], l.dims()[l.dims().len() - 1]));
    if k_dim != head_dim {
        bail!("shape mismatch q {:?} and k {:?}", q.shape(), k.shape())
    }
    if heads_v != heads_k {
        bail!("shape mismatch q {:?} and v {:?}", q.shape(), v.shape())
    }
    for dim in [head_dim, v_dim] {
        if dim > MAX_HEAD_DIM {
            bail!("only supports head dimension at most {MAX_HEAD_DIM} (got {dim})")
        }
    }
    if heads_k == 0 || heads % heads_k != 0 {
        bail!("number of k/v heads {heads_k} must divide number of heads in query {heads}")
    }
    Ok(())
}

pub(crate) fn dense(q: &Layout, k: &Layout, v: &Layout) -> Result<Dims> {
    let [q_rank, k_rank, v_rank] = [q, k, v].map(|l| l.dims().len());
    if q_rank != 4 || k_rank != 4 || v_rank != 4 {
        bail!("flash-attn expects input tensors of rank 4 (q: {q_rank}, k: {k_rank}, v: {v_rank})")
    }
    rows(q, k, v)?;
    if q.dims()[0] != k.dims()[0] {
        bail!("shape mismatch q {:?} and k {:?}", q.shape(), k.shape())
    }
    if k.dims()[..2] != v.dims()[..2] {
        bail!("shape mismatch q {:?} and v {:?}", q.shape(), v.shape())
    }
    let (b, sq, heads) = (q.dims()[0], q.dims()[1], q.dims()[2]);
    Ok(Dims { heads, out: vec![b, sq, heads, v.dims()[3]], lse: vec![b, heads, sq] })
}

pub(crate) fn varlen(q: &Layout, k: &Layout, v: &Layout, page_block_size: Option<usize>) -> Result<Dims> {
    let [q_rank, k_rank, v_rank] = [q, k, v].map(|l| l.dims().len());
    let paged = page_block_size.is_some();
    if q_rank != 3 || (!paged && (k_rank != 3 || v_rank != 3)) {
        bail!("flash-attn-varlen expects input tensors of rank 3 (q: {q_rank}, k: {k_rank}, v: {v_rank})")
    }
    if paged && (k_rank != 4 || v_rank != 4) {
        bail!("flash-attn-varlen paged expects k/v tensors of rank 4 (k: {k_rank}, v: {v_rank})")
    }
    rows(q, k, v)?;
    if k.dims()[..k_rank - 2] != v.dims()[..k_rank - 2] {
        bail!("shape mismatch k {:?} and v {:?}", k.shape(), v.shape())
    }
    if let Some(size) = page_block_size {
        if size != k.dims()[1] {
            bail!("page_block_size {size} does not match k shape {:?}", k.shape())
        }
    }
    let (total_q, heads) = (q.dims()[0], q.dims()[1]);
    Ok(Dims { heads, out: vec![total_q, heads, v.dims()[v_rank - 1]], lse: vec![heads, total_q] })
}

/// The elements of an integer tensor, which Candle stores as u32 or i32.
pub(crate) fn integers(name: &str, tensor: &Tensor) -> Result<Vec<i32>> {
    let tensor = host(name, tensor)?.flatten_all()?;
    match tensor.dtype() {
        DType::I32 => tensor.to_vec1(),
        DType::U32 => {
            let fits = |x| {
                i32::try_from(x).map_err(|_| {
                    candle::Error::msg(format!("{name} is {x}; it must be at most {}", i32::MAX))
                })
            };
            tensor.to_vec1::<u32>()?.into_iter().map(fits).collect()
        }
        dtype => bail!("{name} must be u32 or i32, got {dtype:?}"),
    }
}

/// The row where each sequence starts: (batch + 1) numbers.
pub(crate) fn seqlens(q: &Tensor, k: &Tensor) -> Result<[Vec<i32>; 2]> {
    let (nq, nk) = (q.dims1()?, k.dims1()?);
    if nq < 2 {
        bail!("seqlens_q should have a len >= 2 {nq}")
    }
    if nk != nq {
        bail!("seqlens_q and seqlens_k should have the same number of elements {nq} <> {nk}")
    }
    Ok([integers("seqlens_q", q)?, integers("seqlens_k", k)?])
}

/// An f32 tensor with one element per head.
pub(crate) fn per_head(name: &str, tensor: &Tensor, heads: usize) -> Result<Vec<f32>> {
    if tensor.dtype() != DType::F32 {
        bail!("DType mismatch {name} {:?}, expected {:?}", tensor.dtype(), DType::F32)
    }
    if tensor.dims1()? != heads {
        bail!("shape mismatch {name} {:?}, expected {:?}", tensor.shape(), heads)
    }
    host(name, tensor)?.to_vec1()
}

fn host<'a>(name: &str, tensor: &'a Tensor) -> Result<&'a Tensor> {
    if !tensor.device().is_cpu() {
        bail!("{name} must be a cpu tensor")
    }
    Ok(tensor)
}

/// A window larger than the number of keys is unbounded.
pub(crate) fn window(size: Option<usize>, keys: usize) -> Option<usize> {
    size.filter(|size| *size <= keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle::Shape;

    fn layout(dims: &[usize]) -> Layout {
        Layout::contiguous(Shape::from(dims))
    }

    fn message<T: std::fmt::Debug>(result: Result<T>) -> String {
        result.unwrap_err().to_string().lines().next().unwrap().to_string()
    }

    #[test]
    fn dense_shapes() {
        let q = layout(&[2, 5, 4, 8]);
        let k = layout(&[2, 7, 2, 8]);
        let dims = dense(&q, &k, &layout(&[2, 7, 2, 16])).unwrap();
        assert_eq!((dims.heads, dims.out, dims.lse), (4, vec![2, 5, 4, 16], vec![2, 4, 5]));
        assert_eq!(
            message(dense(&layout(&[5, 4, 8]), &k, &k)),
            "flash-attn expects input tensors of rank 4 (q: 3, k: 4, v: 4)"
        );
        assert_eq!(
            message(dense(&q, &layout(&[3, 7, 2, 8]), &k)),
            "shape mismatch q [2, 5, 4, 8] and k [3, 7, 2, 8]"
        );
        assert_eq!(
            message(dense(&q, &layout(&[2, 7, 2, 9]), &k)),
            "shape mismatch q [2, 5, 4, 8] and k [2, 7, 2, 9]"
        );
        assert_eq!(
            message(dense(&q, &k, &layout(&[2, 6, 2, 8]))),
            "shape mismatch q [2, 5, 4, 8] and v [2, 6, 2, 8]"
        );
        assert_eq!(
            message(dense(&q, &layout(&[2, 7, 3, 8]), &layout(&[2, 7, 3, 8]))),
            "number of k/v heads 3 must divide number of heads in query 4"
        );
        assert!(dense(&q, &layout(&[2, 7, 0, 8]), &layout(&[2, 7, 0, 8])).is_err());
        let wide = layout(&[1, 1, 1, 584]);
        assert_eq!(message(dense(&wide, &wide, &wide)), "only supports head dimension at most 576 (got 584)");
        let transposed = Layout::new(Shape::from((2, 5, 4, 8)), vec![160, 32, 1, 4], 0);
        assert_eq!(
            message(dense(&transposed, &k, &k)),
            "the last dim of q must be contiguous [160, 32, 1, 4]"
        );
    }

    #[test]
    fn varlen_shapes() {
        let q = layout(&[9, 4, 8]);
        let k = layout(&[11, 2, 8]);
        let dims = varlen(&q, &k, &k, None).unwrap();
        assert_eq!((dims.heads, dims.out, dims.lse), (4, vec![9, 4, 8], vec![4, 9]));
        assert_eq!(
            message(varlen(&layout(&[1, 9, 4, 8]), &k, &k, None)),
            "flash-attn-varlen expects input tensors of rank 3 (q: 4, k: 3, v: 3)"
        );
        assert_eq!(
            message(varlen(&q, &k, &layout(&[10, 2, 8]), None)),
            "shape mismatch k [11, 2, 8] and v [10, 2, 8]"
        );
        let pages = layout(&[3, 5, 2, 8]);
        assert_eq!(varlen(&q, &pages, &pages, Some(5)).unwrap().out, [9, 4, 8]);
        assert_eq!(
            message(varlen(&q, &pages, &pages, Some(6))),
            "page_block_size 6 does not match k shape [3, 5, 2, 8]"
        );
        assert_eq!(
            message(varlen(&q, &k, &k, Some(5))),
            "flash-attn-varlen paged expects k/v tensors of rank 4 (k: 3, v: 3)"
        );
    }

    #[test]
    fn windows() {
        assert_eq!([window(None, 5), window(Some(5), 5), window(Some(6), 5)], [None, Some(5), None]);
    }
}
