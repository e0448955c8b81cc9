//! Scale-downs empty nodes one after the other, in the order in which they ought to go.

use anyhow::{bail, ensure};
use belay_e2e::world::{Belay, Namespace};

use crate::busy_support::written;
use crate::stage::{cost, nodes};
use crate::support::SOON;
use crate::values::{only_on, order, placement, ranked_in_order, resize, shrink};

#[test]
fn a_workload_that_shrinks_and_grows_empties_one_node_after_the_other_and_nothing_is_written_for_it() {
    cost("order", async |ns: &Namespace, belay: &Belay| {
        // Room for three each, so that the scheduler has no choice.
        nodes(ns, 3, 3).await?;
        let web = ns.web("web").replicas(9).grace(1).create().await?;
        web.available(SOON).await?;
        let nodes = order(ns, belay, &web).await?;
        let before = written(ns)?.len();
        shrink(ns, &web, 6).await?;
        ensure!(placement(&web, &nodes).await? == [0, 3, 3], "9 to 6: {:?}", placement(&web, &nodes).await?);
        resize(ns, &web, 7).await?;
        ranked_in_order(ns, &web, &nodes.iter().collect::<Vec<_>>()).await?;
        shrink(ns, &web, 5).await?;
        ensure!(placement(&web, &nodes).await? == [0, 2, 3], "7 to 5: {:?}", placement(&web, &nodes).await?);
        let written = written(ns)?.split_off(before);
        ensure!(written.is_empty(), "these were written although the order stayed: {written:?}");
        Ok(())
    });
}

#[test]
fn a_cordoned_node_empties_before_others_and_a_fuller_one_after_them() {
    cost("cordoned", async |ns: &Namespace, belay: &Belay| {
        // The first by name is the fullest: room for three everywhere, besides the seven that only go there.
        let full = nodes(ns, 1, 10).await?.swap_remove(0);
        nodes(ns, 2, 3).await?;
        only_on(ns.web("heavy").replicas(7).grace(1), &full).create().await?.available(SOON).await?;
        let web = ns.web("web").replicas(9).grace(1).create().await?;
        web.available(SOON).await?;
        let nodes = order(ns, belay, &web).await?;
        let [first, second, last] = &nodes[..] else { bail!("{nodes:?}") };
        ensure!(*last == full, "the fullest is {full}, and the order {nodes:?}");
        ns.cordon(second).await?;
        ranked_in_order(ns, &web, &[second, first, last]).await?;
        shrink(ns, &web, 6).await?;
        ensure!(placement(&web, &nodes).await? == [3, 0, 3], "{:?}", placement(&web, &nodes).await?);
        shrink(ns, &web, 3).await?;
        ensure!(placement(&web, &nodes).await? == [0, 0, 3], "{:?}", placement(&web, &nodes).await?);
        Ok(())
    });
}
